"""The admin plane: a Quart-Trio application for what people and tools ask now and then.

application    Quart under Hypercorn, a rule for each row
views          what the views of all resources share
topics, queues, routers, metrics    the views: ordinary coroutines
rows           the rows, which are known before Quart is loaded
paging         pages of lists
"""
