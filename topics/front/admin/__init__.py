"""The admin plane: a Quart-Trio application for the rare requests of operators and tools.

application      Quart behind Hypercorn, with one URL rule for each route
topic_list, leases, routers, metrics
                 the view functions of each resource
views            helper functions that all view functions use
rows             the route-table rows, in a module that does not import Quart
paging           page sizes and cursors for lists
"""
