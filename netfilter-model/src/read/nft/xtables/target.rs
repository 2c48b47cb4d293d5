//! What rules do.

use super::{Converted, Foreign};
use crate::conntrack::Direction;
use crate::nft::{CtKey, Expr, Meta, NatKind, NatStatement, NatValue, Statement, Verdict};
use crate::rule::{
    ChainId, ConnmarkOp, CtTarget, FragmentId, Nat, NatAddresses, NatFlags, NatRange, Target,
    Unsupported, Zone, ZoneSide,
};
use crate::tuple::Family as Ip;

const RESTORE: &str = "nft shows one mask of --restore-mark or --save-mark: taken for both";

impl Converted {
    /// Returns the target that iptables has for a statement. Chains are named by their places in
    /// the table.
    pub(super) fn target(&mut self, statement: &Statement) -> Result<Target, Foreign> {
        let chain = |index: &u32| ChainId { fragment: FragmentId::BASE, index: *index };
        let named = |name: &str, options: &str| {
            Box::new(Unsupported { name: name.into(), options: options.into() })
        };
        Ok(match statement {
            Statement::Verdict(verdict) => match verdict {
                Verdict::Accept => Target::Accept,
                Verdict::Drop => Target::Drop,
                Verdict::Return => Target::Return,
                Verdict::Jump(to) => Target::Jump(chain(to)),
                Verdict::Goto(to) => Target::Goto(chain(to)),
                Verdict::Continue => return Err(Foreign),
                Verdict::Unknown(text) => Target::Unsupported(named(text, "")),
            },
            Statement::Reject(with, _) => Target::Reject(*with),
            Statement::Nat(nat) => Target::Nat(self.nat(nat)?),
            Statement::Notrack => {
                Target::Ct(Box::new(CtTarget { notrack: true, ..CtTarget::default() }))
            }
            Statement::SetZone(Expr::Literal(zone, _), direction) => {
                let side = match direction {
                    None => ZoneSide::Both,
                    Some(Direction::Original) => ZoneSide::Original,
                    Some(Direction::Reply) => ZoneSide::Reply,
                };
                let zone = Some((side, Zone::Id(*zone as u16)));
                Target::Ct(Box::new(CtTarget { zone, ..CtTarget::default() }))
            }
            Statement::SetMark(value) => self.mark(value)?,
            Statement::SetCtMark(value) => self.connmark(value)?,
            Statement::SetDscp(Expr::Literal(value, _)) => {
                Target::Tos { value: (*value as u8) << 2, mask: 0xfc, dscp: true }
            }
            Statement::Other(text) if text.starts_with("log") => {
                let name = if text.contains(" group ") { "NFLOG" } else { "LOG" };
                Target::Continue(named(name, text.trim_start_matches("log").trim()))
            }
            Statement::Other(text) if &**text == "meta nftrace set 1" => {
                Target::Continue(named("TRACE", ""))
            }
            Statement::Other(text) => match text.strip_prefix("tcp option maxseg size set ") {
                Some("rt mtu") => Target::Tcpmss(None),
                Some(size) => Target::Tcpmss(Some(size.parse().map_err(|_| Foreign)?)),
                None => Target::Continue(named(text, "")),
            },
            _ => return Err(Foreign),
        })
    }

    fn mark(&mut self, value: &Expr) -> Result<Target, Foreign> {
        let restore =
            |ctmask: u32, nfmask: u32| Target::Connmark(ConnmarkOp::Restore { nfmask, ctmask });
        Ok(match value {
            Expr::Literal(value, _) => Target::Mark { value: *value as u32, mask: u32::MAX },
            Expr::Ct(CtKey::Mark, None) => restore(u32::MAX, u32::MAX),
            Expr::Bits { of, and, xor } => match &**of {
                Expr::Meta(Meta::Mark) => Target::Mark { value: *xor as u32, mask: !(*and as u32) },
                Expr::Ct(CtKey::Mark, None) if *xor == 0 => {
                    self.remarks.push(RESTORE);
                    restore(*and as u32, *and as u32)
                }
                _ => return Err(Foreign),
            },
            _ => return Err(Foreign),
        })
    }

    fn connmark(&mut self, value: &Expr) -> Result<Target, Foreign> {
        let all = u32::MAX;
        Ok(Target::Connmark(match value {
            Expr::Literal(value, _) => ConnmarkOp::Set { value: *value as u32, mask: all },
            Expr::Meta(Meta::Mark) => ConnmarkOp::Save { nfmask: all, ctmask: all },
            Expr::Bits { of, and, xor } => match &**of {
                Expr::Ct(CtKey::Mark, None) => {
                    ConnmarkOp::Set { value: *xor as u32, mask: !(*and as u32) }
                }
                Expr::Meta(Meta::Mark) if *xor == 0 => {
                    self.remarks.push(RESTORE);
                    ConnmarkOp::Save { nfmask: *and as u32, ctmask: *and as u32 }
                }
                _ => return Err(Foreign),
            },
            _ => return Err(Foreign),
        }))
    }

    fn nat(&self, nat: &NatStatement) -> Result<Nat, Foreign> {
        let fixed = |value: &Option<NatValue>| match value {
            None => Ok(None),
            Some(NatValue::Range(min, max)) => Ok(Some((*min, *max))),
            Some(NatValue::Expr(_)) => Err(Foreign),
        };
        let mut range = NatRange::keep();
        if let Some((min, max)) = fixed(&nat.address)? {
            range.addresses = if self.family == Ip::V4 {
                NatAddresses::V4((min as u32).into(), (max as u32).into())
            } else {
                NatAddresses::V6(Box::new((min.into(), max.into())))
            };
        }
        range.ports = fixed(&nat.port)?.map(|(min, max)| (min as u16, max as u16));
        range.flags = NatFlags {
            random: nat.random,
            random_fully: nat.fully_random,
            persistent: nat.persistent,
        };
        Ok(match nat.kind {
            NatKind::Dnat => Nat::Dnat(range),
            NatKind::Snat => Nat::Snat(range),
            NatKind::Masquerade => Nat::Masquerade(range),
            NatKind::Redirect => Nat::Redirect(range),
        })
    }
}
