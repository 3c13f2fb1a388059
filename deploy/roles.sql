-- The login of servers, and the two roles that it acts in. Run it once as a superuser, before `keepthread migrate`.
-- It may not create tables, and row-level security applies to it: it is neither the owner nor a superuser.
\set ON_ERROR_STOP on
\getenv password KEEPTHREAD_DATABASE_PASSWORD
CREATE ROLE keepthread_app NOLOGIN;
CREATE ROLE keepthread_server NOLOGIN;
CREATE ROLE keepthread_api LOGIN PASSWORD :'password' IN ROLE keepthread_app, keepthread_server;
