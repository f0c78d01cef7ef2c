"""The admin plane: a Quart-Trio application for the rare requests of operators and tools.

application    Quart behind Hypercorn, with a rule for each row
views          functions that the views of all resources use
topic_list, leases, routers, metrics    the views: coroutines
rows           the rows of the route table, which exist before Quart is imported
paging         pages of lists
"""
