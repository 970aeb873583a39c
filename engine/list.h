/* list.h - doubly linked lists whose links are part of what is listed, so that nothing allocates,
 * and the way from a part of a struct to the whole. A leaf: it includes nothing of the project.
 *
 * A zeroed cn_list is empty. A node is in one list at a time. To walk a list:
 *   for (item *i = CN_CONTAINER_OF(list.head, item, node); i;
 *        i = CN_CONTAINER_OF(i->node.next, item, node)) */
#ifndef CN_LIST_H
#define CN_LIST_H

#include <stddef.h>
#include <stdint.h>

static inline void *cn_container_of(const void *part, size_t offset)
{
    return part ? (char *)part - offset : NULL;
}

/* The `type` whose member `part` points to; NULL for NULL, which ends a list. */
#define CN_CONTAINER_OF(part, type, member) ((type *)cn_container_of(part, offsetof(type, member)))

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

/* Takes the first one out; NULL when there is none. */
static inline cn_list_node *cn_list_pop(cn_list *l)
{
    cn_list_node *node = l->head;
    if (node) cn_list_remove(l, node);
    return node;
}

#endif
