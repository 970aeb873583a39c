/* list.h - intrusive doubly linked lists, and CN_CONTAINER_OF to get from a member to its struct. A
 * leaf: it includes nothing of the project.
 *
 * The links are part of the listed struct, so no operation allocates. A zeroed cn_list is empty. A
 * node can be in one list at a time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

static inline void *cn_container_of(const void *part, size_t offset)
{
    return part ? (char *)part - offset : NULL;
}

/* The `type` whose `member` is at `part`; NULL if part is NULL, which ends a list. */
#define CN_CONTAINER_OF(part, type, member) ((type *)cn_container_of(part, offsetof(type, member)))

/* Walks a list: `it` is one item after another. The body of the SAFE one may remove it. */
#define CN_LIST_EACH(type, it, list, member)                                                       \
    for (type *it = CN_CONTAINER_OF((list)->head, type, member); it;                               \
         it = CN_CONTAINER_OF(it->member.next, type, member))
#define CN_LIST_EACH_SAFE(type, it, list, member)                                                  \
    for (type *it = CN_CONTAINER_OF((list)->head, type, member), *next_##it;                       \
         it && (next_##it = CN_CONTAINER_OF(it->member.next, type, member), it); it = next_##it)

typedef struct cn_list_node {
    struct cn_list_node *prev, *next;
} cn_list_node;

typedef struct cn_list {
    cn_list_node *head, *tail;
    uint32_t n;
} cn_list;

static inline void cn_list_append(cn_list *l, cn_list_node *node)
{
    *node = (cn_list_node){.prev = l->tail};
    *(l->tail ? &l->tail->next : &l->head) = node;
    l->tail = node;
    l->n++;
}

static inline void cn_list_prepend(cn_list *l, cn_list_node *node)
{
    *node = (cn_list_node){.next = l->head};
    *(l->head ? &l->head->prev : &l->tail) = node;
    l->head = node;
    l->n++;
}

static inline void cn_list_remove(cn_list *l, cn_list_node *node)
{
    *(node->prev ? &node->prev->next : &l->head) = node->next;
    *(node->next ? &node->next->prev : &l->tail) = node->prev;
    *node = (cn_list_node){0};
    l->n--;
}

/* Removes and returns the first node; NULL if the list is empty. */
static inline cn_list_node *cn_list_pop(cn_list *l)
{
    cn_list_node *node = l->head;
    if (node) cn_list_remove(l, node);
    return node;
}
