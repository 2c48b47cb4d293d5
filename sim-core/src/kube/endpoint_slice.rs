//! The endpoints of a Service: what the EndpointSlice controller writes, as the proxies use it.
//!
//! Simplified: slices are not split into objects of 100 endpoints; a proxy sees all of a Service.

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::pod::{Phase, Pod};
use crate::config::{PodTemplate, ServiceSpec, TargetPort};
use crate::ids::PodId;

/// One endpoint of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The Pod.
    pub pod: PodId,
    /// Its address.
    pub addr: Ipv4Addr,
    /// Its port.
    pub port: u16,
}

/// The endpoints that a proxy should send to, for each port of a Service in the Service's order.
pub type ServiceEndpoints = Vec<Arc<[Endpoint]>>;

/// Returns the endpoints of `service` among `pods`, each list sorted as kube-proxy sorts: by the
/// text `address:port`.
///
/// Ready Pods; without any, those that are terminating and still serve.
///
/// Kubernetes: pkg/proxy/topology.go, CategorizeEndpoints (KEP-1669).
pub fn endpoints(service: &ServiceSpec, pods: &[(PodId, &Pod, &PodTemplate)]) -> ServiceEndpoints {
    let chosen = |terminating: bool, port: &TargetPort| {
        let mut list: Vec<Endpoint> = pods
            .iter()
            .filter(|(_, pod, template)| {
                pod.is_ready() && pod.is_terminating() == terminating && selects(service, template)
            })
            .filter_map(|&(id, pod, template)| endpoint(id, pod, template, port))
            .collect();
        list.sort_by_cached_key(|endpoint| format!("{}:{}", endpoint.addr, endpoint.port));
        list
    };
    let port = |port: &TargetPort| {
        let ready = chosen(false, port);
        Arc::from(if ready.is_empty() { chosen(true, port) } else { ready })
    };
    service.ports.iter().map(|spec| port(&spec.target)).collect()
}

/// Returns whether `service` selects the Pods of `template`.
pub fn selects(service: &ServiceSpec, template: &PodTemplate) -> bool {
    !service.selector.is_empty()
        && service.selector.iter().all(|(key, value)| template.labels.get(key) == Some(value))
}

fn endpoint(id: PodId, pod: &Pod, template: &PodTemplate, port: &TargetPort) -> Option<Endpoint> {
    let addr = pod.placement?.addr;
    let port = match port {
        TargetPort::Number(port) => *port,
        TargetPort::Name(name) => *template.ports.get(name)?,
    };
    (pod.phase == Phase::Running).then_some(Endpoint { pod: id, addr, port })
}
