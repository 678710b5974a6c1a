"""The gang Workload as pure functions over the JSON data of its spec.

`validation` says what is wrong with a spec; all other functions expect one without errors.
"""
