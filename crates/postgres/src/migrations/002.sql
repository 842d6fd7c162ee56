-- Version 2. Most appends write no row of `session`: the head goes with the last entry. Nodes of version 1 do not look for a
-- head there, so this migration is refused while one runs (`schema.rs`).

-- The session's head after this entry, where the append wrote no row of `session`. It counts from `session.entries` on: the
-- newest one there is the session's head, and without one `session.head` is.
alter table {s}.entry add column head bytea;

-- Appends entries of sessions that one incarnation owns, and writes no row of `session`. Returns whether they were written:
-- not if the incarnation's lease has run out. An entry whose place is taken makes all of it fail.
--
-- The fence: the lease is looked at under the shared lock of the incarnation. `claim` holds this lock alone before it looks
-- at sessions, and takes only those of an incarnation whose lease has run out. Such a lease is never renewed. So when
-- `claim` looks, an append of the earlier owner is committed, or it will find that there is no lease. Each statement in here
-- sees what was committed before it began.
create function {s}.append_entries(
    incarnation int8, sessions text[], ids int8[], epochs int8[], bodies bytea[], heads bytea[]
) returns bool language plpgsql as $append_entries$
#variable_conflict use_column
declare
    -- An assignment takes a tenth of the time of a query.
    locked text := pg_advisory_xact_lock_shared(hashtextextended('greenroom {s}', append_entries.incarnation));
begin
    insert into {s}.entry (session, id, epoch, body, head)
    select * from unnest(append_entries.sessions, append_entries.ids, append_entries.epochs, append_entries.bodies,
        append_entries.heads)
    where exists (select from {s}.node n
        where n.incarnation = append_entries.incarnation and n.expires > clock_timestamp());
    return found;
end
$append_entries$;

-- Appends batches of several sessions like `append_entries`, and writes the rows of some. Returns the sessions whose rows
-- were written; null, and nothing is written, if the incarnation's lease has run out. `of_row` marks the entries of the
-- sessions in `ids`: they are written if the row is as its owner left it. The others are written in any case.
create function {s}.append(
    incarnation int8,
    ids text[], epochs int8[], befores int8[], firsts int8[], nexts int8[], keys bytea[], heads bytea[], titles text[],
    labels text[], created int8[], updated int8[], unfinished bool[], parents text[], active int8[],
    entry_sessions text[], entry_ids int8[], entry_epochs int8[], bodies bytea[], entry_heads bytea[], of_row bool[]
) returns text[] language plpgsql as $append$
#variable_conflict use_column
declare
    locked text := pg_advisory_xact_lock_shared(hashtextextended('greenroom {s}', append.incarnation));
    written text[];
begin
    if not exists (select from {s}.node n where n.incarnation = append.incarnation
            and n.expires > clock_timestamp()) then
        return null;
    end if;
    -- Sessions are given, and so locked, in the order of their ids.
    with want as materialized (
        select * from unnest(append.ids, append.epochs, append.befores, append.firsts, append.nexts, append.keys,
            append.heads, append.titles, append.labels, append.created, append.updated, append.unfinished, append.parents,
            append.active)
        as w(id, epoch, before, first, next, key, head, title, labels, created_at_ms, updated_at_ms, is_unfinished, parent,
            active_from)
    ), moved as (
        update {s}.session s set is_there = true, entries = w.next, head = w.head, title = w.title,
            labels = w.labels::jsonb, created_at_ms = w.created_at_ms, updated_at_ms = w.updated_at_ms,
            is_unfinished = w.is_unfinished, parent = w.parent, active_from = w.active_from
        from want w
        where s.id = w.id and s.owner = append.incarnation and s.epoch = w.epoch and s.entries = w.before
            and (w.key is null or not exists (select from {s}.key k where k.session = w.id and k.key = w.key))
        returning s.id, w.key, w.first
    ), keyed as (
        insert into {s}.key (session, key, first)
        select m.id, m.key, m.first from moved m where m.key is not null on conflict do nothing
    ), entered as (
        insert into {s}.entry (session, id, epoch, body, head)
        select e.session, e.id, e.epoch, e.body, e.head
        from unnest(append.entry_sessions, append.entry_ids, append.entry_epochs, append.bodies, append.entry_heads,
            append.of_row) as e(session, id, epoch, body, head, of_row)
        where not e.of_row or e.session in (select m.id from moved m)
    )
    select coalesce(array_agg(m.id), '{}') into written from moved m;
    return written;
end
$append$;

-- The number of the partition of a session's entries, as PostgreSQL computes it: a statement that appends to few partitions
-- is faster.
create function {s}.part_of(session text) returns int8 language sql immutable as
$$ select ((hashtextextended(session collate "C", 8816678312871386365) & 15) + 3) & 15 $$;

-- Claims sessions for an incarnation, and creates the rows of some. A session that another statement creates at the same
-- time is not in the answer. `entries` counts all entries, `before` those that the row counts; `part` is the number of the
-- partition of its entries.
create function {s}.claim(incarnation int8, ids text[], creates bool[])
returns table (id text, has_lease bool, epoch int8, entries int8, before int8, known_epoch int8, part int8, node text,
    address text)
language plpgsql as $claim$
#variable_conflict use_column
declare
    held int8[] := '{}';
    more int8[];
begin
    -- The fence of `append_entries`. The owners are those of now: another claim may have changed them while this one waited.
    loop
        select array_agg(distinct s.owner order by s.owner) into more from {s}.session s
        where s.id = any(claim.ids) and s.owner <> all(held) and (s.owner = claim.incarnation or not exists (
            select from {s}.node n where n.incarnation = s.owner and n.expires > clock_timestamp()));
        exit when more is null;
        perform pg_advisory_xact_lock(hashtextextended('greenroom {s}', o)) from unnest(more) as o;
        held := held || more;
    end loop;
    -- The owners' rows are locked, so their newest expiries are compared, and a renewal waits for the claim. The clock is
    -- read after that.
    return query with want as materialized (
        select * from unnest(claim.ids, claim.creates) as w(id, creates)
    ), me as materialized (
        select m.name from {s}.node m where m.incarnation = claim.incarnation and m.expires > clock_timestamp()
    ), s as materialized (
        select x.id, x.owner, x.epoch, x.entries from {s}.session x
        where x.id = any(claim.ids) order by x.id for no key update
    ), n as materialized (
        select n.incarnation, n.name, n.address, n.expires from {s}.node n
        where n.incarnation in (select s.owner from s where s.owner <> claim.incarnation) order by n.name for share
    ), took as (
        update {s}.session x set owner = claim.incarnation, epoch = x.epoch + 1, wish = null
        from s where x.id = s.id and exists (select from me) and (s.owner is null or s.owner = any(held)
            and not exists (select from n where n.incarnation = s.owner and n.expires > clock_timestamp()))
        returning x.id, x.epoch
    ), fresh as (
        insert into {s}.session (id, owner, epoch)
        select w.id, claim.incarnation, 1 from want w
        where w.creates and exists (select from me) and not exists (select from s where s.id = w.id)
        order by w.id
        on conflict do nothing returning id, epoch
    )
    select w.id, exists (select from me), coalesce(t.epoch, f.epoch),
        greatest(s.entries, (select max(e.id) + 1 from {s}.entry e where e.session = s.id and e.id >= s.entries), 0),
        coalesce(s.entries, 0), coalesce(s.epoch, f.epoch), {s}.part_of(w.id), n.name, n.address
    from want w left join s on s.id = w.id left join took t on t.id = w.id left join fresh f on f.id = w.id
        left join n on n.incarnation = s.owner
    where s.id is not null or f.id is not null or not exists (select from me);
end
$claim$;

update {s}.version set version = 2;
