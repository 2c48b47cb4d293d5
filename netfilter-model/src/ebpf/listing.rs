//! The maps as `cilium bpf lb list` prints them.

use std::fmt::Write as _;

use super::maps::{Endpoint, Frontend, FrontendKey, Maps, Policies, RevNatId, View as _};
use crate::tuple::Family;

const TITLE: &str = "BACKEND ADDRESS (REVNAT_ID) (SLOT)";

/// Blanks between the columns.
const GAP: usize = 2;

impl Maps {
    /// Returns all slots of all frontends, in order of their text.
    // Cilium: cilium-dbg/cmd/bpf_lb_list.go; the order there is that of Go's maps.
    pub fn list(&self) -> String {
        let mut rows = Vec::new();
        for (key, frontend) in self.frontends() {
            let text = key.to_string();
            rows.push((text.clone(), 0, head(key, frontend)));
            for (slot, id) in (1..).zip(frontend.slots.iter()) {
                let value = match self.backend(*id) {
                    Some(backend) => {
                        let at = Endpoint(backend.address, backend.port, backend.protocol);
                        format!("{at} ({}) ({slot})", frontend.rev_nat.0)
                    }
                    None => format!("backend {} not found", id.0),
                };
                rows.push((text.clone(), slot, value));
            }
        }
        rows.sort();
        let rows = rows.into_iter().map(|(key, slot, value)| (format!("{key} ({slot})"), value));
        columns("SERVICE ADDRESS", TITLE, &rows.collect::<Vec<_>>())
    }

    /// Returns where answers are translated back to, by number.
    pub fn list_rev_nat(&self) -> String {
        let entries = self.frontends().map(|(key, frontend)| (frontend.rev_nat, key));
        let mut entries: Vec<(RevNatId, &FrontendKey)> = entries.collect();
        entries.sort();
        let rows = entries.into_iter().map(|(id, key)| {
            let FrontendKey { address, port, .. } = key;
            let text = match Family::of(*address) {
                Family::V4 => format!("{address}:{port}"),
                Family::V6 => format!("[{address}]:{port}"),
            };
            (id.0.to_string(), text)
        });
        columns("ID", TITLE, &rows.collect::<Vec<_>>())
    }
}

fn head(key: &FrontendKey, frontend: &Frontend) -> String {
    let none = if key.address.is_ipv4() { "0.0.0.0" } else { "[::]" };
    format!("{none}:0 ({}) (0) [{}]", frontend.rev_nat.0, flags(frontend))
}

// Cilium: pkg/loadbalancer/loadbalancer.go, ServiceFlags.String
fn flags(frontend: &Frontend) -> String {
    let Policies { external_local, internal_local } = frontend.policies;
    let mut text = frontend.kind.to_string();
    for (wanted, word) in [
        (external_local, "Local"),
        (internal_local, "InternalLocal"),
        (frontend.has_two_scopes(), "two-scopes"),
        (frontend.affinity.is_some(), "sessionAffinity"),
        (!frontend.routable, "non-routable"),
        (!frontend.source_ranges.is_empty(), "check source-range"),
    ] {
        if wanted {
            let _ = write!(text, ", {word}");
        }
    }
    text
}

fn columns(first: &str, second: &str, rows: &[(String, String)]) -> String {
    let keys = rows.iter().map(|(key, _)| key.len());
    let width = keys.chain([first.len()]).max().unwrap_or_default() + GAP;
    let mut text = format!("{first:<width$}{second}\n");
    for (key, value) in rows {
        let _ = writeln!(text, "{key:<width$}{value}");
    }
    text
}
