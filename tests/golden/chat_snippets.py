"""chat_snippets.py: small templates, one construct each. See chat_reference.py."""

VARIABLES = {
    "s": "Héllo, wörld", "sp": "  a  b \n", "words": ["b", "A", "c", "a"], "n": 7, "neg": -7,
    "x": 2.5, "big": 1e22, "t": True, "none_value": None, "empty": "", "nums": [3, 1, 2, 3],
    "d": {"b": 1, "a": [1, {"k": None}], "C": "x", "items": "own"}, "html": "<a href='x'>&\"</a>",
    "people": [{"name": "Bo", "age": 3, "tag": {"id": 1}}, {"name": "al", "age": 5, "tag": {"id": 0}},
               {"name": "Cy", "age": 3, "tag": {"id": 1}}],
    "ctl": "q\"'\\\n\t\r\x01\x7f\u2028é🙂", "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}]}, {"v": 3}],
    "messages": [{"role": "user", "content": "hi"}],
}

SNIPPETS = r"""
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 3 ** 2 }} {{ 2 ** -1 }}
{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1e3 }} {{ 1_000 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 1e-5 }} {{ 0.0001 }} {{ 100.0 }} {{ big }} {{ 5 / 5 }}
{{ 9223372036854775807 }} {{ True + True }} {{ -True }} {{ 3 * 'ab' }} {{ [1] * 2 }} {{ 'a' * -1 }} {{ (1, 2) + (3,) }} {{ () }} {{ (1,) }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 != 1 == 1 }} {{ none == none }}
{{ 'a' in 'abc' }} {{ 'a' not in 'abc' }} {{ 2 in nums }} {{ 'b' in d }} {{ none in [none] }} {{ 1.0 in nums }} {{ not 1 in nums }}
{{ 1 if t else 2 }} {{ 1 if not t }} {{ 1 if false else 2 if false else 3 }} {{ (1 if t) is defined }} {{ (1 if not t) is defined }}
{{ 1 and 0 or 5 }} {{ '' or 'x' }} {{ 'x' and '' }}| {{ not '' }} {{ not not 3 }} {{ none or none }}
{{ s ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'a'] ~ undefined_name }} {{ 1 ~ 2 * 3 }} {{ ('a' ~ 1) + 'b' }}
{{ s[0] }} {{ s[1] }} {{ s[-1] }} {{ s[1:4] }} {{ s[:-1] }} {{ s[::-1] }} {{ s[::2] }} {{ s[10:2:-3] }} {{ s[100] is defined }} {{ s[5:100] }} {{ s[-100:2] }}
{{ nums[1:] }} {{ nums[::-1] }} {{ nums[-2:] }} {{ nums[3:1:-1] }} {{ nums[9] is defined }} {{ nums[0:0] }} {{ nums[:] }} {{ (1, 2, 3)[1:] }} {{ nums[t] }}
{{ d.b }} {{ d['b'] }} {{ d.a[1].k }} {{ d['a'][1]['k'] is none }} {{ d.nope is defined }} {{ d['nope'] is defined }} {{ d.items is callable }} {{ d['items'] }} {{ d.a.0 }}
{{ d }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | list }} {{ d.get('b') }} {{ d.get('z') }} {{ d.get('z', 5) }} {{ d | items | list }}
{{ {'a': 1, 'b': [1, (2, 3)], 3: none} }} {{ {} }} {{ [] }} {{ {'a': {'b': {'c': 1}}}.a.b.c }} {{ {'k': 'v',} }} {{ [1, 2,] }}
{{ "a'b" }} {{ ["a'b", 'a"b', 'a\'"b', ctl, '\x00\x7f', 'é', '\u200b'] }} {{ 'a' 'b' "c" }} {{ '\x41\u00e9\101\n\t\\\q' }} {{ '\U0001F642' }}
{{ sp.strip() }}|{{ sp.lstrip() }}|{{ sp.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcba'.strip('ab') }}|{{ 'éaé'.strip('é') }}|{{ 'a'.strip(none) }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ ' a b c '.split(none, 1) }} {{ 'aXXbXX'.split('XX')[-1] == '' }}
{{ 'a\nb\r\nc\x0bd\n'.splitlines() }} {{ 'a\n\nb'.splitlines(true) }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }} {{ 'abc'.rpartition('x') }}
{{ s.startswith('Hé') }} {{ s.endswith(('x', 'ld')) }} {{ s.startswith('') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'abc'.removesuffix('x') }}
{{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc'.replace('', '-') }} {{ 'aaa' | replace('a', 'b', 1) }} {{ 123 | replace('2', 'x') }} {{ 'ab'.replace('ab', '') }}|
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ "it's a-b (c)" | title }} {{ 'ABC' | capitalize }} {{ s | upper }} {{ 'ÀÉΩЖ' | lower }}
{{ s.find('w') }} {{ s.find('zz') }} {{ s.rfind('l') }} {{ s.index('w') }} {{ s.count('l') }} {{ 'aaa'.count('aa') }} {{ 'abc'.count('') }} {{ s.find('l', 4) }}
{{ ', '.join(words) }} {{ words | join }} {{ nums | join('-') }} {{ people | join(', ', attribute='name') }} {{ 'abc' | join('.') }} {{ '-'.join('abc') }}
{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'a1'.isalnum() }} {{ 'é'.isalpha() }} {{ ' \n'.isspace() }} {{ '12'.isnumeric() }}
{{ '{} {} {1} {a}'.format(1, 2, a=3) if false }}{{ '{} and {}'.format('x', 2) }} {{ '{0}{0}{b}'.format('x', b=none) }} {{ '{{}} {}'.format(1) }}
{{ '%s is %d and %5.2f%%' % ('a', 3, 1.5) }} {{ '%s' % 'x' }} {{ '%(k)s' % {'k': 1} }} {{ '%s %s' | format('a', 2) }} {{ '%05d|%-5s|%5s|%x' % (42, 'ab', 'é', 255) }} {{ '%r' % 'a' }}
{{ nums | length }} {{ s | length }} {{ d | count }} {{ undefined_name | length }} {{ nums | first }} {{ nums | last }} {{ [] | first is defined }} {{ s | last }}
{{ nums | sort }} {{ nums | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ people | sort(attribute='tag.id') | map(attribute='name') | list }}
{{ nums | min }} {{ nums | max }} {{ words | max }} {{ people | max(attribute='age') }} {{ [] | min is defined }} {{ nums | sum }} {{ people | sum(attribute='age') }} {{ nums | sum(start=10) }}
{{ nums | unique | list }} {{ words | unique | list }} {{ nums | reverse | list }} {{ 'héy' | reverse }}
{{ people | map(attribute='name') | list }} {{ words | map('upper') | list }} {{ people | map(attribute='tag.id') | join(',') }} {{ people | map(attribute='zip', default='-') | list }} {{ nums | map('string') | join }}
{{ nums | select('odd') | list }} {{ nums | reject('odd') | list }} {{ [0, 1, ''] | select | list }} {{ people | selectattr('age', 'eq', 3) | map(attribute='name') | list }} {{ people | rejectattr('age', 'gt', 3) | list | length }} {{ people | selectattr('tag.id') | list | length }} {{ nums | select('in', [1, 2]) | list }}
{{ d | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ {'b': 1, 'a': 2} | dictsort(reverse=true) }}
{{ undefined_name | default('x') }} {{ '' | default('x') }}| {{ '' | default('x', true) }} {{ none | d('y', boolean=true) }} {{ d.zz | default({}) }} {{ undefined_name | default }}|
{{ '12' | int }} {{ '12.7' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ ' 3 ' | int }} {{ 2.9 | int }} {{ true | int }} {{ 'ff' | int(0, 16) }} {{ '1.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ none | int }} {{ '-4' | int }}
{{ -3 | abs }} {{ neg | abs }} {{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | round(0, 'floor') }} {{ 7 | round }} {{ 1234.5 | round(-2) }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb\n' | indent(2) }}|{{ 'a\n\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\nb' | indent('>>', first=true) }}|{{ '' | indent(2, true) }}|
{{ sp | trim }}|{{ 'xax' | trim('x') }}|{{ 5 | trim }}|{{ html | escape }}|{{ html | e | length }}|{{ 'a b, c-d' | wordcount }}
{{ d | tojson }} {{ ctl | tojson }} {{ ctl | tojson(ensure_ascii=true) }} {{ [1, 1.0, 1e100, none, true] | tojson }} {{ (1, 2) | tojson }} {{ html | tojson }} {{ '' | tojson }} {{ [] | tojson }} {{ {} | tojson }}
{{ d | tojson(indent=2) }} {{ [[], {}, [1]] | tojson(indent=4) }} {{ d | tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true) }} {{ {1: 2, true: 3, none: 4} | tojson }} {{ d | tojson(indent=0) }} {{ d | tojson(indent='--') }} {{ d | tojson(indent=none) }}
{{ s is string }} {{ n is number }} {{ n is integer }} {{ x is float }} {{ t is boolean }} {{ t is number }} {{ t is integer }} {{ d is mapping }} {{ nums is sequence }} {{ d is sequence }} {{ s is iterable }} {{ n is iterable }} {{ none is none }} {{ undefined_name is undefined }} {{ undefined_name is iterable }} {{ undefined_name is sequence }} {{ undefined_name is string }}
{{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 is ne 1 }} {{ 1 is lt 2 }} {{ 2 is ge 2 }} {{ 1 is in nums }} {{ t is true }} {{ 1 is true }} {{ t is sameas true }} {{ 1 is sameas 1 }} {{ 'upper' is filter }} {{ 'nope' is test }} {{ 1 is not none }} {{ range is callable }} {{ none is not defined }}
{{ s is defined and s is string or false }} {{ not s is none }} {{ s is not none and t }} {{ [1] is iterable and [1] is not mapping }} {{ n is divisibleby 7 and t }}
{% for i in nums %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.previtem }}/{{ loop.nextitem }} {{ loop.depth }};{% endfor %}
{% for i in nums if i > 1 %}{{ i }}{{ loop.index }}{{ loop.last }} {% else %}none{% endfor %} {% for i in [] %}x{% else %}empty{% endfor %} {% for i in undefined_name %}x{% else %}nothing{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for c in 'héy' %}{{ c }}.{% endfor %} {% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %} {% for i in range(3) %}{{ i }}{% endfor %} {{ range(1, 10, 3) | list }} {{ range(3, 0, -1) | list }}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %} {% for a in [1, 2] %}{% for b in [1, 2] %}{% if b == 2 %}{% break %}{% endif %}{{ a }}{{ b }} {% endfor %}{{ loop.index }}{% endfor %}
{% for item in tree recursive %}[{{ item.v }}{{ loop.depth }}{% if item.kids %}{{ loop(item.kids) }}{% endif %}]{% endfor %}
{% set a = 1 %}{% for i in [1, 2] %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }} {% if t %}{% set a = 9 %}{% endif %}{{ a }} {% set b, c = 1, 2 %}{{ b }}{{ c }} {% set e = 1, 2 %}{{ e }}
{% set ns = namespace(x=1, l=[]) %}{% for i in nums %}{% set ns.x = ns.x + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.x }} {{ ns.l }} {{ ns.zz is defined }} {% set ns.zz = 'new' %}{{ ns.zz }} {% set ns2 = namespace({'p': 1}, q=2) %}{{ ns2.p + ns2.q }}
{% set block %}a{{ n }} {% set inner = 1 %}b{% endset %}[{{ block }}] {{ inner is defined }} {% set up | upper | replace('X', 'y') %}x{{ s }}{% endset %}{{ up }} {{ block is string }}
{% macro f(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(b=1, a=0) }} {{ f(1, 2, 3, 4, k=5) }} {{ f() }} {{ f(*[1, 2], **{'c': 3}) }} {{ f.name }}
{% macro outer(x) %}<{{ caller(x) }}{{ caller(x * 2) }}>{% endmacro %}{% call(v) outer(3) %}{{ v }}{{ n }}{% endcall %} {% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k * (fact(k - 1) | int) }}{% endif %}{% endmacro %}{{ fact(10) }}
{% macro late() %}{{ later | default('unset') }}{% endmacro %}{{ late() }} {% set later = 'set' %}{{ late() }} {% for i in [1] %}{% set later = 'inner' %}{{ late() }}{% endfor %} {% macro noargs() %}{% set n = 5 %}{{ n }}{% endmacro %}{{ noargs() }}{{ n }}
{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a is defined }} {% with %}{% set z = 1 %}{% endwith %}{{ z is defined }} {% filter upper %}x{{ s }}{% endfilter %} {% generation %}gen{{ n }}{% endgeneration %}
{% raw %}{{ not run }} {% if %}{% endraw %} {%- raw -%}  {{ x }}  {%- endraw -%}  end
a {# comment #} b {#- c -#} d {# {{ x }} {% if %} #}e{#-#}f
{% if 0 %}a{% elif '' %}b{% elif n > 5 %}c{% else %}d{% endif %} {% if none %}{% else %}e{% endif %} {% if not undefined_name %}f{% endif %} {% if 1, %}tuple{% endif %}
{{ dict(a=1, b=2) }} {{ dict([('x', 1)], y=2) }} {{ dict(d, z=1) | length }} {{ range is defined }} {{ raise_exception is defined }} {{ strftime_now is defined }}
{{ n|string + 'x' }} {{ n | string | length }} {{ -n | abs }} {{ - 3 + 5 }} {{ +4 }} {{ 2 - -2 }} {{ (n)|string ~ 'a' }} {{ [n, x] | map('int') | sum }} {{ n is number and -n < 0 }} {{ -0.0 }} {{ 1 - 1.0 }}
{{ people[0].name }} {{ people[-1]['name'] }} {{ (people | first).tag.id }} {{ people[0]['tag']['id'] }} {{ messages[0].content[0] }} {{ (messages | last)['role'] }} {{ messages | map(attribute='role') | join }} {{ messages == [{'role': 'user', 'content': 'hi'}] }}
{{ nums.index(2) }} {{ nums.count(3) }} {{ (1, 2).index(2) }} {{ d.copy() == d }} {{ nums.copy() }} {{ nums | attr('zz') is defined }} {{ d | attr('b') is defined }} {{ s | attr('upper') is callable }}
{% if nums | select('gt', 100) %}stream is true{% endif %} {{ (nums | select('gt', 100) | list) is defined }} {{ nums | map('abs') is iterable }} {{ nums | map('abs') is sequence }} {{ nums | map('abs') is mapping }}
{%- set x = 1 -%}   
  {%- if true %}  
    indented
  {% endif %}
tail  
   {%+ if true %}kept{% endif +%}
next {{- ' joined ' -}} up
    {{ 'print keeps margin' }}
  {% set y = 2 %}  
x{# trailing comment #}
y
"""

ERRORS = [
    "{{ undefined_name.x }}", "{{ undefined_name() }}", "{{ undefined_name + 1 }}", "{{ d.zz.y }}",
    "{{ 'a' + 1 }}", "{{ 1 + 'a' }}", "{{ none + 'a' }}", "{{ [1] + (2,) }}", "{{ 1 / 0 }}", "{{ 1 % 0 }}",
    "{{ 1 < 'a' }}", "{{ 1 in 'a' }}", "{{ 1 in 5 }}", "{{ nums.append(1) }}", "{{ d.update({}) }}", "{{ d.pop('b') }}",
    "{{ raise_exception('no \\u00e9!') }}", "{{ n() }}", "{{ 'x'() }}", "{% for i in 5 %}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}", "{% set a, b = 1, 2, 3 %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{{ none | length }}", "{{ 5 | length }}", "{{ x | nope }}", "{{ x is nope }}", "{{ undefined_name | tojson }}",
    "{{ [undefined_name] | tojson }}", "{{ range(1000000) }}", "{{ range() }}", "{{ [] | first + 'a' }}",
    "{{ d | dictsort(by='x', foo=1) }}", "{{ 'a'.join([1]) }}", "{{ 'a'.split('') }}", "{{ 'abc'.index('z') }}",
    "{% set n.x = 1 %}", "{{ {[1]: 2} }}", "{{ undefined_name | int }}", "{{ -'a' }}", "{{ 'a' | abs }}",
    "{{ ('a', 1) | sort }}", "{{ [1, 'a'] | max }}", "{{ n[1:] }}", "{{ undefined_name[1:] }}", "{{ nums[::0] }}",
    "{{ '%s %s' % 'a' }}", "{{ '%s' % ('a', 'b') }}", "{{ '%d' % 'a' }}", "{{ {1: 2} | items | length }}",
    "{{ nums | map('nope') | list }}", "{{ nums | select('nope') | list }}", "{{ s.nope() }}", "{{ s.__class__.__name__ }}",
    "{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", "{% macro r(a) %}{{ r(a) }}{% endmacro %}{{ r(1) }}",
    "{{ s.startswith(1) }}", "{{ s.replace(1, 2) }}", "{{ d.items(1) }}", "{{ strftime_now(1) }}",
    # Syntax errors.
    "{{", "{{ }}", "{{ 1 + }}", "{% if %}{% endif %}", "{% if 1 %}", "{% endif %}", "{% for x %}{% endfor %}",
    "{% nope %}", "{{ 'a }}", "{{ a b }}", "{{ (1 }}", "{{ [1 }}", "{{ {1} }}", "{{ a. }}", "{{ a[ }}", "{{ x | }}",
    "{{ x is }}", "{% set 1 = 2 %}", "{% set x %}", "{% macro f( %}{% endmacro %}", "{# open", "{% raw %} x",
    "{{ 1 if }}", "{% set loop = 1 %}{% for loop in [1] %}{% endfor %}", "{{ ! }}", "{{ a ? b }}", "{% else %}",
    "{% for x in y %}{% endif %}", "{{ f(a=1, 2) }}", "{% if a = 1 %}{% endif %}", "{% call f %}{% endcall %}", "{{ 1 is odd is even }}",
]


def snippets():
    """Each line is one, but the last lines, on white space, are one together."""
    head, tail = SNIPPETS.strip("\n").split("{%- set x = 1 -%}", 1)
    whole = "{%- set x = 1 -%}" + tail
    return head.rstrip("\n").split("\n") + [whole, whole.replace("\n", "\r\n"), whole + "\n\n"]
