//! The statements, except the bodies of the functions in `migrations/002.sql`.
//!
//! Invariants: each is one statement that the server executes and commits by itself, so a client that freezes or is
//! cancelled holds no lock. Each may be repeated: what it did already it does not do twice. Locks are taken in the order
//! incarnations, sessions by id, nodes.

/// The newest head and number of entries of the session `s`, as `t`: nothing where the session's own row has them.
const NEWEST: &str = "left join lateral (
                     select n.id + 1 as entries, n.head from {s}.entry n
                     where n.session = s.id and n.id >= s.entries and n.head is not null order by n.id desc limit 1
                 ) t on true";

/// A statement, by what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sql {
    /// Appends batches of several sessions, and writes the rows of some.
    Append,
    /// Appends batches of several sessions, and writes no rows.
    AppendEntries,
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
    UsedKeys,
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
    Leases,
    Wish,
    Abandoned,
}

impl Sql {
    /// Returns the statement for the tables of this schema.
    pub(crate) fn text(self, schema: &str) -> String {
        self.template().replace("{newest}", NEWEST).replace("{s}", schema)
    }

    fn template(self) -> &'static str {
        match self {
            // These are functions of the tables, because the lock comes before what they read: `migrations/002.sql`.
            Self::Append => {
                "select {s}.append($1::int8, $2::text[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::bytea[], \
                     $8::bytea[], $9::text[], $10::text[], $11::int8[], $12::int8[], $13::bool[], $14::text[], \
                     $15::int8[], $16::text[], $17::int8[], $18::int8[], $19::bytea[], $20::bytea[], $21::bool[])"
            }
            Self::AppendEntries => {
                "select {s}.append_entries($1::int8, $2::text[], $3::int8[], $4::int8[], $5::bytea[], $6::bytea[])"
            }
            Self::Claim => "select * from {s}.claim($1::int8, $2::text[], $3::bool[])",
            Self::AppendParts => {
                "with locked as materialized (
                     select s.id from {s}.session s
                     where s.id = $1::text and s.owner = $2::int8 and s.epoch = $3::int8 and s.entries = $16::int8
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
                "select s.owner, s.epoch, coalesce(t.entries, s.entries), s.entries, s.is_there, k.first, e.epoch
                 from {s}.session s {newest}
                 left join {s}.key k on k.session = $1::text and k.key = $2::bytea
                 left join {s}.entry e on e.session = $1::text and e.id = $3::int8
                 where s.id = $1::text"
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
            Self::Head => {
                "select coalesce(t.head, s.head), coalesce(t.entries, s.entries), s.epoch from {s}.session s {newest}
                 where s.id = $1::text and s.is_there"
            }
            Self::UsedKey => {
                "select k.first from {s}.key k join {s}.session s on s.id = k.session
                 where k.session = $1::text and k.key = $2::bytea and s.is_there"
            }
            Self::UsedKeys => {
                "select k.key, k.first from {s}.key k join {s}.session s on s.id = k.session
                 where k.session = $1::text and s.is_there order by k.key"
            }
            Self::Load => {
                "select coalesce(t.entries, s.entries), s.epoch, e.id, e.body from {s}.session s {newest}
                 left join {s}.entry e on e.session = $1::text and e.id >= $2::int8
                 where s.id = $1::text and s.is_there order by e.id"
            }
            // The head is the first row, and the only one without an entry's id.
            Self::Open => {
                "with h as materialized (
                     select coalesce(t.entries, s.entries) as entries, s.epoch, coalesce(t.head, s.head) as head, s.active_from
                     from {s}.session s {newest} where s.id = $1::text and s.is_there
                 )
                 select h.entries, h.epoch, null::int8 as id, h.head as body from h
                 union all
                 select h.entries, h.epoch, e.id, e.body from h
                 join {s}.entry e on e.session = $1::text and e.id >= h.active_from
                 order by id nulls first"
            }
            Self::Get => {
                "select null::int8, s.epoch, e.id, e.body from {s}.session s
                 left join {s}.entry e on e.session = $1::text and e.id = any($2::int8[])
                 where s.id = $1::text and s.is_there"
            }
            Self::Page => {
                "select s.id, coalesce(t.head, s.head) from {s}.session s {newest}
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
            // Nodes that ended without a word are forgotten a day later.
            Self::Register => {
                "with forgotten as (delete from {s}.node
                     where name <> $1::text and expires < clock_timestamp() - interval '1 day')
                 insert into {s}.node as n (name, incarnation, address, expires, is_draining)
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
            Self::Leases => {
                "select n.name, n.incarnation, n.address from {s}.node n where n.expires > clock_timestamp()"
            }
            Self::Wish => "select s.wish from {s}.session s where s.id = $1::text",
            Self::Abandoned => {
                "select s.id from {s}.session s where s.is_unfinished and s.is_there and s.id > $1::text
                     and not exists (
                         select from {s}.node n where n.incarnation = s.owner and n.expires > clock_timestamp())
                 order by s.id limit $2::int8"
            }
        }
    }
}
