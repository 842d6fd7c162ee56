-- Version 1. `{s}` is the schema's name. Only forward: a change is a new file, and a statement here never changes.

-- One row: the version of everything here.
create table {s}.version (
    is_one boolean primary key default true check (is_one),
    version integer not null
);

create sequence {s}.incarnation as bigint;

-- A row for each node, renewed in place every few seconds. `incarnation` changes with each start and each lost lease.
create table {s}.node (
    name text collate "C" primary key,
    incarnation bigint not null,
    address text,
    expires timestamptz not null,
    is_draining boolean not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- A row for each session: its owner, and its head. The head is `head`; the columns repeat what lists and filters need.
-- A deleted session, and one that was claimed and never written to, keeps its row: `is_there` is false, and the epoch goes on.
create table {s}.session (
    id text collate "C" primary key,
    epoch bigint not null,
    owner bigint,
    wish text,
    is_there boolean not null default false,
    entries bigint not null default 0,
    active_from bigint not null default 0,
    created_at_ms bigint not null default 0,
    updated_at_ms bigint not null default 0,
    is_unfinished boolean not null default false,
    title text,
    parent text,
    labels jsonb not null default '{}',
    head bytea
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- None of these has a column that each append changes, so most appends change no index.
create index session_there on {s}.session (id) where is_there;
create index session_unfinished on {s}.session (id) where is_unfinished;
create index session_owner on {s}.session (owner) where owner is not null;
create index session_labels on {s}.session using gin (labels jsonb_path_ops) where is_there;

-- The entries. `epoch` is that of the owner that wrote it.
create table {s}.entry (
    session text collate "C" not null,
    id bigint not null,
    epoch bigint not null,
    body bytea not null,
    primary key (session, id)
) partition by hash (session);

-- The idempotency keys, and the first entry of the batch of each.
create table {s}.key (
    session text collate "C" not null,
    key bytea not null,
    first bigint not null,
    primary key (session, key)
);

do $$
begin
    for part in 0..15 loop
        execute format('create table {s}.entry_%s partition of {s}.entry for values with (modulus 16, remainder %s)', part, part);
    end loop;
end $$;

-- Batches that are too large for one statement wait here until all of them is there.
create table {s}.part (
    batch bytea not null,
    id bigint not null,
    body bytea not null,
    at timestamptz not null default clock_timestamp(),
    primary key (batch, id)
);

-- Small facts, by name.
create table {s}.fact (
    name bytea primary key,
    value bytea not null
);

-- lz4 is faster than the default, and not in every server.
do $$
declare part text;
begin
    for part in select 'entry_' || n from generate_series(0, 15) n union all select 'entry' union all select 'part' loop
        execute format('alter table {s}.%s alter column body set compression lz4', part);
    end loop;
    alter table {s}.session alter column head set compression lz4;
exception when feature_not_supported or invalid_parameter_value or syntax_error then
    null;
end $$;

insert into {s}.version (version) values (1);
