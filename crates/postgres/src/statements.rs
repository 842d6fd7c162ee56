//! The statements, all of them.
//!
//! Invariants: each is one statement that the server executes and commits by itself, so a client that freezes or is
//! cancelled holds no lock. Each may be repeated: what it did already it does not do twice. Locks are taken in the order
//! sessions by id, then nodes.

/// A statement, by what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sql {
    /// Appends batches of several sessions, each if its owner, epoch and entries are as expected.
    Append,
    /// Appends one batch whose entries wait in `part`.
    AppendParts,
    /// Adds entries to `part`.
    Part,
    /// Removes a batch from `part`.
    PartsDropped,
    /// Says why a batch was refused.
    Diagnosis,
    /// Claims sessions, and creates the rows of some.
    Claim,
    Release,
    OwnerOf,
    Delete,
    Head,
    UsedKey,
    Load,
    Open,
    Get,
    Page,
    FactGet,
    FactKeys,
    FactPut,
    FactDropped,
    Register,
    Renew,
    Drain,
    Goodbye,
    NodeNamed,
    Members,
    Wish,
    Abandoned,
}

impl Sql {
    /// Returns the statement for the tables of this schema.
    pub(crate) fn text(self, schema: &str) -> String {
        self.template().replace("{s}", schema)
    }

    fn template(self) -> &'static str {
        match self {
            // The update compares the newest version of each row, under its lock: that is the fence. Where a takeover commits
            // between the statement's snapshot and the lock, the comparison is made again. Sessions are given, and so locked,
            // in the order of their ids.
            Self::Append => {
                "with want as materialized (
                     select * from unnest($1::text[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::bytea[], \
                         $7::bytea[], $8::text[], $9::text[], $10::int8[], $11::int8[], $12::bool[], $13::text[], \
                         $14::int8[])
                     as w(id, owner, epoch, first, next, key, head, title, labels, created_at_ms, updated_at_ms, \
                         is_unfinished, parent, active_from)
                 ), moved as (
                     update {s}.session s set is_there = true, entries = w.next, head = w.head, title = w.title,
                         labels = w.labels::jsonb, created_at_ms = w.created_at_ms, updated_at_ms = w.updated_at_ms,
                         is_unfinished = w.is_unfinished, parent = w.parent, active_from = w.active_from
                     from want w
                     where s.id = w.id and s.owner = w.owner and s.epoch = w.epoch and s.entries = w.first
                         and (w.key is null
                             or not exists (select from {s}.key k where k.session = w.id and k.key = w.key))
                     returning s.id, s.epoch, w.key, w.first
                 ), keyed as (
                     insert into {s}.key (session, key, first)
                     select m.id, m.key, m.first from moved m where m.key is not null on conflict do nothing
                 ), entered as (
                     insert into {s}.entry (session, id, epoch, body)
                     select e.session, e.id, m.epoch, e.body
                     from unnest($15::text[], $16::int8[], $17::bytea[]) as e(session, id, body)
                     join moved m on m.id = e.session
                 )
                 select m.id from moved m"
            }
            Self::AppendParts => {
                "with locked as materialized (
                     select s.id from {s}.session s
                     where s.id = $1::text and s.owner = $2::int8 and s.epoch = $3::int8 and s.entries = $4::int8
                     for no key update
                 ), ready as materialized (
                     select l.id from locked l
                     where ($6::bytea is null
                             or not exists (select from {s}.key k where k.session = $1::text and k.key = $6::bytea))
                         and (select count(*) from {s}.part p where p.batch = $15::bytea) = $5::int8 - $4::int8
                 ), moved as (
                     update {s}.session s set is_there = true, entries = $5::int8, head = $7::bytea, title = $8::text,
                         labels = $9::text::jsonb, created_at_ms = $10::int8, updated_at_ms = $11::int8,
                         is_unfinished = $12::bool, parent = $13::text, active_from = $14::int8
                     from ready r where s.id = r.id
                 ), keyed as (
                     insert into {s}.key (session, key, first)
                     select r.id, $6::bytea, $4::int8 from ready r where $6::bytea is not null on conflict do nothing
                 ), entered as (
                     insert into {s}.entry (session, id, epoch, body)
                     select r.id, p.id, $3::int8, p.body from ready r join {s}.part p on p.batch = $15::bytea
                 )
                 select r.id from ready r"
            }
            Self::Part => {
                "insert into {s}.part (batch, id, body)
                 select $1::bytea, p.id, p.body from unnest($2::int8[], $3::bytea[]) as p(id, body)
                 on conflict do nothing"
            }
            Self::PartsDropped => {
                "delete from {s}.part where batch = $1::bytea or at < clock_timestamp() - interval '1 day'"
            }
            Self::Diagnosis => {
                "select s.owner, s.epoch, s.entries, s.is_there, k.first, e.epoch
                 from {s}.session s
                 left join {s}.key k on k.session = $1::text and k.key = $2::bytea
                 left join {s}.entry e on e.session = $1::text and e.id = $3::int8
                 where s.id = $1::text"
            }
            // The owners' rows are locked, so their newest expiries are compared, and a renewal waits for the claim. The clock
            // is read after that. A session that another statement creates at the same time is not in the answer.
            Self::Claim => {
                "with want as materialized (
                     select * from unnest($1::text[], $3::bool[]) as w(id, creates)
                 ), me as materialized (
                     select m.name from {s}.node m where m.incarnation = $2::int8 and m.expires > clock_timestamp()
                 ), s as materialized (
                     select x.id, x.owner, x.epoch, x.entries from {s}.session x
                     where x.id = any($1::text[]) order by x.id for no key update
                 ), n as materialized (
                     select n.incarnation, n.name, n.address, n.expires from {s}.node n
                     where n.incarnation in (select s.owner from s where s.owner <> $2::int8) order by n.name for share
                 ), took as (
                     update {s}.session x set owner = $2::int8, epoch = x.epoch + 1, wish = null
                     from s where x.id = s.id and exists (select from me) and (s.owner is null or s.owner = $2::int8
                         or not exists (select from n where n.incarnation = s.owner and n.expires > clock_timestamp()))
                     returning x.id, x.epoch
                 ), fresh as (
                     insert into {s}.session (id, owner, epoch)
                     select w.id, $2::int8, 1 from want w
                     where w.creates and exists (select from me) and not exists (select from s where s.id = w.id)
                     order by w.id
                     on conflict do nothing returning id, epoch
                 )
                 select w.id, exists (select from me), coalesce(t.epoch, f.epoch), coalesce(s.entries, 0),
                     coalesce(s.epoch, f.epoch), n.name, n.address
                 from want w left join s on s.id = w.id left join took t on t.id = w.id left join fresh f on f.id = w.id
                     left join n on n.incarnation = s.owner
                 where s.id is not null or f.id is not null or not exists (select from me)"
            }
            Self::Release => {
                "update {s}.session set owner = null, wish = $4::text
                 where id = $1::text and owner = $2::int8 and ($3::int8 is null or epoch = $3::int8)"
            }
            Self::OwnerOf => {
                "select n.name, n.address, s.epoch from {s}.session s join {s}.node n on n.incarnation = s.owner
                 where s.id = $1::text and n.expires > clock_timestamp()"
            }
            Self::Delete => {
                "with s as materialized (
                     select x.id from {s}.session x
                     where x.id = $1::text and x.owner = $2::int8 and x.epoch = $3::int8 and x.is_there
                     for no key update
                 ), gone as (
                     update {s}.session x set is_there = false, owner = null, wish = null, epoch = x.epoch + 1, entries = 0,
                         active_from = 0, created_at_ms = 0, updated_at_ms = 0, is_unfinished = false, title = null,
                         parent = null, labels = '{}', head = null
                     from s where x.id = s.id
                 ), entries as (
                     delete from {s}.entry e using s where e.session = $1::text
                 ), keys as (
                     delete from {s}.key k using s where k.session = $1::text
                 )
                 select s.id from s"
            }
            Self::Head => "select s.head, s.entries, s.epoch from {s}.session s where s.id = $1::text and s.is_there",
            Self::UsedKey => {
                "select k.first from {s}.key k join {s}.session s on s.id = k.session
                 where k.session = $1::text and k.key = $2::bytea and s.is_there"
            }
            Self::Load => {
                "select s.entries, s.epoch, e.id, e.body from {s}.session s
                 left join {s}.entry e on e.session = $1::text and e.id >= $2::int8
                 where s.id = $1::text and s.is_there order by e.id"
            }
            // The head is the first row, and the only one without an entry's id.
            Self::Open => {
                "select s.entries, s.epoch, null::int8 as id, s.head as body from {s}.session s
                 where s.id = $1::text and s.is_there
                 union all
                 select s.entries, s.epoch, e.id, e.body from {s}.session s
                 join {s}.entry e on e.session = $1::text and e.id >= s.active_from
                 where s.id = $1::text and s.is_there
                 order by id nulls first"
            }
            Self::Get => {
                "select s.entries, s.epoch, e.id, e.body from {s}.session s
                 left join {s}.entry e on e.session = $1::text and e.id = any($2::int8[])
                 where s.id = $1::text and s.is_there"
            }
            Self::Page => {
                "select s.id, s.head from {s}.session s
                 where s.is_there and s.id > $1::text order by s.id limit $2::int8"
            }
            Self::FactGet => "select f.value from {s}.fact f where f.name = $1::bytea",
            Self::FactKeys => {
                "select f.name from {s}.fact f where f.name >= $1::bytea
                     and substr(f.name, 1, length($1::bytea)) = $1::bytea order by f.name"
            }
            Self::FactPut => {
                "insert into {s}.fact (name, value) values ($1::bytea, $2::bytea)
                 on conflict (name) do update set value = excluded.value"
            }
            Self::FactDropped => "delete from {s}.fact where name = $1::bytea",
            Self::Register => {
                "insert into {s}.node as n (name, incarnation, address, expires, is_draining)
                 values ($1::text, nextval('{s}.incarnation'), $2::text,
                     clock_timestamp() + $3::float8 * interval '1 second', $4::bool)
                 on conflict (name) do update set incarnation = excluded.incarnation, address = excluded.address,
                     expires = clock_timestamp() + $3::float8 * interval '1 second', is_draining = excluded.is_draining
                 where n.expires <= clock_timestamp() or n.incarnation = $5::int8
                 returning n.incarnation"
            }
            Self::Renew => {
                "update {s}.node set expires = clock_timestamp() + $3::float8 * interval '1 second'
                 where name = $1::text and incarnation = $2::int8 and expires > clock_timestamp()
                 returning incarnation"
            }
            Self::Drain => {
                "update {s}.node set is_draining = true where name = $1::text and incarnation = $2::int8"
            }
            Self::Goodbye => "delete from {s}.node where name = $1::text and incarnation = $2::int8",
            Self::NodeNamed => {
                "select n.incarnation, n.address, n.expires::text,
                     extract(epoch from n.expires - clock_timestamp())::float8
                 from {s}.node n where n.name = $1::text"
            }
            Self::Members => {
                "select n.name, n.address, n.is_draining,
                     (select count(*) from {s}.session s where s.owner = n.incarnation)
                 from {s}.node n where n.expires > clock_timestamp() order by n.name"
            }
            Self::Wish => "select s.wish from {s}.session s where s.id = $1::text",
            Self::Abandoned => {
                "select s.id from {s}.session s where s.is_unfinished and s.is_there and not exists (
                     select from {s}.node n where n.incarnation = s.owner and n.expires > clock_timestamp())
                 order by s.id limit $1::int8"
            }
        }
    }
}
