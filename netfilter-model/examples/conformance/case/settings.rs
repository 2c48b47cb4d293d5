//! Sysctls and `ip` commands.

use std::time::Duration;

use netfilter_model::conntrack::Sysctls;
use netfilter_model::network::{DeviceSysctls, NodeId};
use serde_json::{Value, json};

use super::World;
use super::json::Get;

impl World {
    pub(super) fn sysctl(&mut self, step: &Value) -> Result<Value, String> {
        let (_, id) = self.endpoint(step, "node")?;
        if let Some(values) = step.get("values") {
            self.set_sysctls(id, values)?;
        }
        Ok(json!({}))
    }

    /// Sets sysctls; one that changes nothing in the model is remarked.
    pub(super) fn set_sysctls(&mut self, id: NodeId, values: &Value) -> Result<(), String> {
        let Some(values) = values.as_object() else {
            return Ok(());
        };
        for (key, value) in values {
            let number = match value {
                Value::Number(number) => number.as_u64(),
                Value::String(text) => text.parse().ok(),
                _ => None,
            };
            let number = number.ok_or_else(|| format!("{key} has no number"))?;
            if !self.set_sysctl(id, key, number) {
                self.remarks.push(format!("sysctl {key} is not modelled"));
            }
        }
        Ok(())
    }

    fn set_sysctl(&mut self, id: NodeId, key: &str, number: u64) -> bool {
        let node = self.network.node_mut(id);
        let on = number != 0;
        let host = &mut node.host;
        if let Some(name) = key.strip_prefix("net.netfilter.nf_conntrack_") {
            let mut sysctls = node.netns.conntrack().sysctls().clone();
            let known = set_conntrack(&mut sysctls, name, number);
            node.netns.conntrack_mut().set_sysctls(sysctls);
            return known;
        }
        match key {
            "net.ipv4.ip_forward" => host.sysctls.ip_forward = on,
            "net.ipv6.conf.all.forwarding" => host.sysctls.ipv6_forwarding = on,
            "net.bridge.bridge-nf-call-iptables" => host.sysctls.bridge_nf_call_iptables = on,
            "net.bridge.bridge-nf-call-ip6tables" => host.sysctls.bridge_nf_call_ip6tables = on,
            "net.ipv4.icmp_ratelimit" => {
                node.netns.set_icmp_ratelimit(Duration::from_millis(number));
            }
            _ => {
                let Some(rest) = key.strip_prefix("net.ipv4.conf.") else {
                    return false;
                };
                let Some((dev, name)) = rest.split_once('.') else {
                    return false;
                };
                let own = host.device_named(dev);
                let set = match (dev, own) {
                    ("all", _) => Some(&mut host.sysctls.all),
                    (_, Some(own)) => host.device_mut(own).map(|device| &mut device.sysctls),
                    _ => None,
                };
                return set.is_some_and(|set| set_of_device(set, name, number));
            }
        }
        true
    }

    /// Does what `ip` does.
    pub(super) fn ip(&mut self, step: &Value) -> Result<Value, String> {
        let (_, id) = self.endpoint(step, "node")?;
        let args = match step.text("args") {
            Some(text) => text.split_whitespace().map(str::to_owned).collect(),
            None => step.texts("args"),
        };
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        let done = self.network.node_mut(id).host.ip(&words);
        if let Err(problem) = &done {
            self.remarks.push(format!("ip {}: {problem}", words.join(" ")));
        }
        self.network.introduce();
        Ok(json!({"ok": done.is_ok()}))
    }
}

fn set_conntrack(set: &mut Sysctls, name: &str, number: u64) -> bool {
    let on = number != 0;
    let span = Duration::from_secs(number);
    match name {
        "max" => set.max = u32::try_from(number).unwrap_or(u32::MAX),
        "checksum" => set.checksum = on,
        "tcp_loose" => set.tcp_loose = on,
        "tcp_be_liberal" => set.tcp_be_liberal = on,
        "tcp_ignore_invalid_rst" => set.tcp_ignore_invalid_rst = on,
        "tcp_max_retrans" => set.tcp_max_retrans = number.min(255) as u8,
        "tcp_timeout_syn_sent" => set.tcp_timeout_syn_sent = span,
        "tcp_timeout_syn_recv" => set.tcp_timeout_syn_recv = span,
        "tcp_timeout_established" => set.tcp_timeout_established = span,
        "tcp_timeout_fin_wait" => set.tcp_timeout_fin_wait = span,
        "tcp_timeout_close_wait" => set.tcp_timeout_close_wait = span,
        "tcp_timeout_last_ack" => set.tcp_timeout_last_ack = span,
        "tcp_timeout_time_wait" => set.tcp_timeout_time_wait = span,
        "tcp_timeout_close" => set.tcp_timeout_close = span,
        "tcp_timeout_max_retrans" => set.tcp_timeout_max_retrans = span,
        "tcp_timeout_unacknowledged" => set.tcp_timeout_unacknowledged = span,
        "udp_timeout" => set.udp_timeout = span,
        "udp_timeout_stream" => set.udp_timeout_stream = span,
        "icmp_timeout" => set.icmp_timeout = span,
        "icmpv6_timeout" => set.icmpv6_timeout = span,
        "gre_timeout" => set.gre_timeout = span,
        "gre_timeout_stream" => set.gre_timeout_stream = span,
        "sctp_timeout_cookie_wait" => set.sctp_timeout_cookie_wait = span,
        "sctp_timeout_established" => set.sctp_timeout_established = span,
        "generic_timeout" => set.generic_timeout = span,
        _ => return false,
    }
    true
}

fn set_of_device(set: &mut DeviceSysctls, name: &str, number: u64) -> bool {
    match name {
        "rp_filter" => set.rp_filter = number.min(2) as u8,
        "route_localnet" => set.route_localnet = number != 0,
        "accept_local" => set.accept_local = number != 0,
        _ => return false,
    }
    true
}
