//! kube-proxy's configuration file, field by field.
//!
//! Kubernetes: staging/src/k8s.io/kube-proxy/config/v1alpha1/types.go; `k8s-openapi` has no types
//! for it.

use std::collections::BTreeMap;
use std::time::Duration;

use netfilter_model::Prefix;
use netfilter_model::tuple::Family;
use serde::Deserialize;
use serde_json::Value;

use super::super::{Findings, Path};
use super::{address, range};
use crate::config::parse_duration;
use crate::kube::object::{
    ConntrackSettings, DetectLocal, IpvsSettings, KubeProxyConfiguration, NodePortAddresses,
    ProxyMode, SyncSettings,
};

/// The file. Fields that change nothing here are read as they are.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct File {
    #[serde(rename = "apiVersion")]
    _api_version: Value,
    #[serde(rename = "kind")]
    _kind: Value,
    feature_gates: Option<BTreeMap<String, bool>>,
    #[serde(rename = "clientConnection")]
    _client_connection: Value,
    #[serde(rename = "logging")]
    _logging: Value,
    hostname_override: Option<String>,
    bind_address: Option<String>,
    #[serde(rename = "healthzBindAddress")]
    _healthz_bind_address: Option<String>,
    #[serde(rename = "metricsBindAddress")]
    _metrics_bind_address: Option<String>,
    #[serde(rename = "bindAddressHardFail")]
    _bind_address_hard_fail: Option<bool>,
    #[serde(rename = "enableProfiling")]
    _enable_profiling: Option<bool>,
    #[serde(rename = "showHiddenMetricsForVersion")]
    _show_hidden_metrics_for_version: Option<String>,
    mode: Option<String>,
    iptables: Option<Iptables>,
    ipvs: Option<Ipvs>,
    nftables: Option<Nftables>,
    #[serde(rename = "winkernel")]
    _winkernel: Value,
    detect_local_mode: Option<String>,
    detect_local: Option<Detect>,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: Option<String>,
    node_port_addresses: Option<Vec<String>>,
    #[serde(rename = "oomScoreAdj")]
    _oom_score_adj: Option<i32>,
    conntrack: Option<Conntrack>,
    #[serde(rename = "configSyncPeriod")]
    _config_sync_period: Option<String>,
    #[serde(rename = "portRange")]
    _port_range: Option<String>,
    #[serde(rename = "windowsRunAsService")]
    _windows_run_as_service: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Iptables {
    masquerade_bit: Option<i32>,
    masquerade_all: Option<bool>,
    localhost_node_ports: Option<bool>,
    sync_period: Option<String>,
    min_sync_period: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Nftables {
    masquerade_bit: Option<i32>,
    masquerade_all: Option<bool>,
    sync_period: Option<String>,
    min_sync_period: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ipvs {
    sync_period: Option<String>,
    min_sync_period: Option<String>,
    scheduler: Option<String>,
    #[serde(rename = "excludeCIDRs")]
    exclude_cidrs: Option<Vec<String>>,
    #[serde(rename = "strictARP")]
    strict_arp: Option<bool>,
    tcp_timeout: Option<String>,
    tcp_fin_timeout: Option<String>,
    udp_timeout: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Detect {
    bridge_interface: Option<String>,
    interface_name_prefix: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Conntrack {
    max_per_core: Option<u32>,
    min: Option<u32>,
    tcp_established_timeout: Option<String>,
    tcp_close_wait_timeout: Option<String>,
    tcp_be_liberal: Option<bool>,
    #[serde(rename = "udpTimeout")]
    _udp_timeout: Option<String>,
    #[serde(rename = "udpStreamTimeout")]
    _udp_stream_timeout: Option<String>,
}

pub(super) fn read(file: File, findings: &mut Findings) -> Option<KubeProxyConfiguration> {
    let iptables = file.iptables.unwrap_or_default();
    let mode = match file.mode.as_deref() {
        None | Some("" | "iptables") => ProxyMode::Iptables,
        Some("nftables") => ProxyMode::Nftables,
        Some("ipvs") => ProxyMode::Ipvs,
        Some(other) => {
            findings.error(
                Path::of("mode"),
                format!("unknown mode {other:?}"),
                "known are iptables, nftables and ipvs",
            );
            ProxyMode::Iptables
        }
    };
    let detect = file.detect_local.unwrap_or_default();
    let detect_local = detect_local(file.detect_local_mode.as_deref(), detect, findings);
    let bind = file.bind_address.as_deref().filter(|text| !text.is_empty());
    let bind = bind.and_then(|text| address(text, Path::of("bindAddress"), findings));
    let name = file.hostname_override.filter(|name| !name.is_empty());
    let iptables_bit = bit(iptables.masquerade_bit, "iptables.masqueradeBit", findings);
    let iptables_all = iptables.masquerade_all == Some(true);
    // A file that was written for another mode has no such section: when the mode is swapped, what
    // it says about masquerading holds on.
    let keeps = file.nftables.is_none() && mode != ProxyMode::Nftables;
    let nftables = file.nftables.unwrap_or_default();
    let nftables_bit = bit(nftables.masquerade_bit, "nftables.masqueradeBit", findings);
    Some(KubeProxyConfiguration {
        mode,
        cluster_cidrs: cluster_cidrs(file.cluster_cidr.as_deref(), findings),
        detect_local,
        node_port_addresses: node_port_addresses(file.node_port_addresses, findings),
        bind_address: bind.filter(|address| !address.is_unspecified()),
        hostname_override: name,
        localhost_node_ports: iptables.localhost_node_ports != Some(false),
        iptables: SyncSettings {
            masquerade_bit: iptables_bit,
            masquerade_all: iptables_all,
            ..periods("iptables", iptables.sync_period, iptables.min_sync_period, findings)
        },
        nftables: SyncSettings {
            masquerade_bit: if keeps { iptables_bit } else { nftables_bit },
            masquerade_all: nftables.masquerade_all == Some(true) || (keeps && iptables_all),
            ..periods("nftables", nftables.sync_period, nftables.min_sync_period, findings)
        },
        ipvs: ipvs(file.ipvs.unwrap_or_default(), findings),
        conntrack: conntrack(file.conntrack.unwrap_or_default(), findings),
        feature_gates: file.feature_gates.unwrap_or_default(),
    })
}

fn detect_local(mode: Option<&str>, detect: Detect, findings: &mut Findings) -> DetectLocal {
    let mut needs = |given: Option<String>, field: &str| match given {
        Some(name) if !name.is_empty() => name,
        _ => {
            findings.missing(Path::of("detectLocal"), field);
            String::new()
        }
    };
    match mode {
        None | Some("" | "ClusterCIDR") => DetectLocal::ClusterCidr,
        Some("NodeCIDR") => DetectLocal::NodeCidr,
        Some("BridgeInterface") => {
            DetectLocal::BridgeInterface(needs(detect.bridge_interface, "bridgeInterface"))
        }
        Some("InterfaceNamePrefix") => {
            let prefix = needs(detect.interface_name_prefix, "interfaceNamePrefix");
            DetectLocal::InterfaceNamePrefix(prefix)
        }
        Some(other) => {
            findings.error(
                Path::of("detectLocalMode"),
                format!("unknown mode {other:?}"),
                "known are ClusterCIDR, NodeCIDR, BridgeInterface and InterfaceNamePrefix",
            );
            DetectLocal::ClusterCidr
        }
    }
}

fn cluster_cidrs(text: Option<&str>, findings: &mut Findings) -> Vec<Prefix> {
    let mut ranges: Vec<Prefix> = Vec::new();
    for text in text.unwrap_or("").split(',').filter(|text| !text.is_empty()) {
        let at = Path::of("clusterCIDR");
        let Some(range) = range(text, at.clone(), findings) else {
            continue;
        };
        let family = |range: &Prefix| Family::of(range.address());
        if ranges.iter().any(|other| family(other) == family(&range)) {
            findings.error(at, "two ranges of one family", "one IPv4 and one IPv6 range at most");
        } else {
            ranges.push(range);
        }
    }
    ranges
}

fn node_port_addresses(texts: Option<Vec<String>>, findings: &mut Findings) -> NodePortAddresses {
    let texts = texts.unwrap_or_default();
    match &texts[..] {
        [] => NodePortAddresses::Default,
        [only] if only == "primary" => NodePortAddresses::Primary,
        texts => {
            let ranges = texts.iter().enumerate().filter_map(|(index, text)| {
                range(text, Path::of("nodePortAddresses").index(index), findings)
            });
            NodePortAddresses::Ranges(ranges.collect())
        }
    }
}

fn bit(given: Option<i32>, at: &str, findings: &mut Findings) -> u8 {
    match u8::try_from(given.unwrap_or(14)) {
        Ok(bit) if bit < 32 => bit,
        _ => {
            findings.error(Path::of(at), "there is no such bit", "a mark has the bits 0 to 31");
            14
        }
    }
}

/// Reads a duration; zero and nothing are the default.
fn duration(
    text: Option<String>,
    default: Duration,
    at: Path,
    findings: &mut Findings,
) -> Duration {
    match text.as_deref().map(parse_duration) {
        None | Some(Ok(Duration::ZERO)) => default,
        Some(Ok(duration)) => duration,
        Some(Err(message)) => {
            findings.error(at, message, "as in `30s` or `1m30s`");
            default
        }
    }
}

fn periods(
    section: &str,
    sync: Option<String>,
    min_sync: Option<String>,
    findings: &mut Findings,
) -> SyncSettings {
    let SyncSettings { sync_period, min_sync_period, .. } = SyncSettings::default();
    let at = |field| Path::of(section).key(field);
    SyncSettings {
        sync_period: duration(sync, sync_period, at("syncPeriod"), findings),
        min_sync_period: duration(min_sync, min_sync_period, at("minSyncPeriod"), findings),
        ..SyncSettings::default()
    }
}

fn ipvs(ipvs: Ipvs, findings: &mut Findings) -> IpvsSettings {
    const SCHEDULERS: [&str; 12] =
        ["", "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "mh"];
    let at = |field| Path::of("ipvs").key(field);
    let scheduler = ipvs.scheduler.unwrap_or_default();
    if !SCHEDULERS.contains(&scheduler.as_str()) {
        findings.error(
            at("scheduler"),
            format!("unknown scheduler {scheduler:?}"),
            format!("known are {}", SCHEDULERS[1..].join(", ")),
        );
    }
    let excluded = ipvs.exclude_cidrs.unwrap_or_default();
    let excluded = excluded.iter().enumerate();
    let exclude_cidrs = excluded
        .filter_map(|(index, text)| range(text, at("excludeCIDRs").index(index), findings))
        .collect();
    let default = IpvsSettings::default();
    let mut read =
        |text, default, field| duration(text, default, Path::of("ipvs").key(field), findings);
    IpvsSettings {
        scheduler,
        exclude_cidrs,
        strict_arp: ipvs.strict_arp == Some(true),
        sync_period: read(ipvs.sync_period, default.sync_period, "syncPeriod"),
        min_sync_period: read(ipvs.min_sync_period, Duration::ZERO, "minSyncPeriod"),
        timeouts: [
            read(ipvs.tcp_timeout, Duration::ZERO, "tcpTimeout"),
            read(ipvs.tcp_fin_timeout, Duration::ZERO, "tcpFinTimeout"),
            read(ipvs.udp_timeout, Duration::ZERO, "udpTimeout"),
        ],
    }
}

fn conntrack(conntrack: Conntrack, findings: &mut Findings) -> ConntrackSettings {
    let default = ConntrackSettings::default();
    let mut read =
        |text, default, field| duration(text, default, Path::of("conntrack").key(field), findings);
    ConntrackSettings {
        tcp_be_liberal: conntrack.tcp_be_liberal == Some(true),
        max_per_core: conntrack.max_per_core.unwrap_or(default.max_per_core),
        min: conntrack.min.unwrap_or(default.min),
        tcp_established: read(
            conntrack.tcp_established_timeout,
            default.tcp_established,
            "tcpEstablishedTimeout",
        ),
        tcp_close_wait: read(
            conntrack.tcp_close_wait_timeout,
            default.tcp_close_wait,
            "tcpCloseWaitTimeout",
        ),
    }
}
