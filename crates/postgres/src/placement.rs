//! Which node runs a session.
//!
//! Invariants: the server's clock alone decides whether another node's lease is valid; this node's own clock, whether its own
//! is. A wish counts as long as that node is there and not leaving. Without one, all nodes choose the same node for a
//! session, and a node that joins or leaves changes that of few.

use std::collections::BTreeMap;
use std::pin::Pin;

use greenroom_store::{Answer, Claim, Lease, Member, Owner, Placement, StoreError, check_session};
use tokio_postgres::Row;

use crate::append::Claimed;
use crate::batch::number;
use crate::pool::Kind;
use crate::slots::State;
use crate::statements::Sql;
use crate::{Postgres, Shared};

impl Shared {
    async fn members(&self) -> Result<Vec<Member>, StoreError> {
        self.check_open()?;
        let rows = self.pool.run(Kind::Read, Sql::Members, &[]).await?;
        let member = |row: &Row| Member {
            node: row.get(0),
            address: row.get(1),
            is_draining: row.get(2),
            sessions: number(row.get(3)),
        };
        Ok(rows.iter().map(member).collect())
    }

    async fn place(&self, session: &str) -> Result<Member, StoreError> {
        check_session(session)?;
        let rows = self.pool.run(Kind::Read, Sql::Wish, &[&session]).await?;
        let wish: Option<String> = rows.first().and_then(|row| row.get(0));
        let mut members = self.members().await?;
        members.retain(|member| !member.is_draining);
        let wished = members.iter().position(|member| Some(&member.node) == wish.as_ref());
        let chosen = wished.or_else(|| {
            let names = members.iter().map(|member| member.node.as_str());
            names.enumerate().max_by_key(|(_, node)| weight(node, session)).map(|(at, _)| at)
        });
        let none = || StoreError::Unavailable { detail: "all nodes are leaving".to_owned() };
        chosen.map(|at| members.swap_remove(at)).ok_or_else(none)
    }
}

/// The weight of a node for a session: the one with the highest runs it. Never changes, because nodes of two versions must
/// agree.
fn weight(node: &str, session: &str) -> u64 {
    let bytes = node.bytes().chain([0]).chain(session.bytes());
    let sum = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    // The last bytes hardly change the highest bits of the sum, so it is mixed once more.
    let mixed = (sum ^ (sum >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Placement for Postgres {
    fn claim<'a>(&'a self, session: &'a str) -> Answer<'a, Claim> {
        Box::pin(async move {
            match self.shared().claim_for_good(session).await? {
                Claimed::Mine(owned) => Ok(Claim::Mine { epoch: number(owned.epoch) }),
                Claimed::Theirs(owner) => Ok(Claim::Theirs(owner)),
                Claimed::Absent => Err(StoreError::NotFound { session: session.to_owned() }),
            }
        })
    }

    fn holds(&self, session: &str) -> bool {
        let shared = self.shared();
        let lease = shared.lease.incarnation();
        matches!(shared.slots.state(session), State::Owned(owned) if lease.is_ok_and(|now| now == owned.incarnation))
    }

    fn release<'a>(&'a self, session: &'a str, to: Option<&'a str>) -> Answer<'a, ()> {
        Box::pin(async move {
            self.shared().check_open()?;
            self.shared().give_back(session, to).await
        })
    }

    fn owner_of<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Owner>> {
        Box::pin(async move {
            self.shared().check_open()?;
            check_session(session)?;
            let rows = self.shared().pool.run(Kind::Read, Sql::OwnerOf, &[&session]).await?;
            let owner =
                |row: &Row| Owner { node: row.get(0), address: row.get(1), epoch: number(row.get(2)) };
            Ok(rows.first().map(owner))
        })
    }

    fn place<'a>(&'a self, session: &'a str) -> Answer<'a, Member> {
        Box::pin(self.shared().place(session))
    }

    fn members(&self) -> Answer<'_, Vec<Member>> {
        Box::pin(self.shared().members())
    }

    fn leases(&self) -> Answer<'_, BTreeMap<String, Lease>> {
        Box::pin(async move {
            self.shared().check_open()?;
            let rows = self.shared().pool.run(Kind::Read, Sql::Leases, &[]).await?;
            let lease = |row: &Row| Lease { number: number(row.get(1)), address: row.get(2) };
            Ok(rows.iter().map(|row| (row.get(0), lease(row))).collect())
        })
    }

    fn abandoned<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<String>> {
        Box::pin(async move {
            self.shared().check_open()?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            // No id is empty.
            let after = after.unwrap_or_default();
            let rows = self.shared().pool.run(Kind::Read, Sql::Abandoned, &[&after, &limit]).await?;
            Ok(rows.iter().map(|row| row.get(0)).collect())
        })
    }

    fn drain(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let shared = self.shared();
            shared.check_open()?;
            // A lease that is granted later is that of a node that leaves, too.
            shared.lease.drain();
            let Ok(incarnation) = shared.lease.incarnation() else { return Ok(()) };
            let node = &shared.options.node;
            shared.pool.run(Kind::Write, Sql::Drain, &[node, &incarnation]).await.map(drop)
        })
    }

    fn check(&self) -> Result<(), StoreError> {
        self.shared().check_open()?;
        self.shared().lease.incarnation().map(drop)
    }

    fn lost(&self, known: u64) -> Pin<Box<dyn Future<Output = u64> + Send>> {
        Box::pin(self.shared().lease.lost(known))
    }
}

#[cfg(test)]
mod tests;
