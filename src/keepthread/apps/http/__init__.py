"""The HTTP server: `keepthread serve`, for programs in any language.

`create_app` builds the application of one worker. Authentication, limits and idempotency are layers
around the routes, so that a new route has them from its first day: a path that is not named as
public needs a key.
"""
