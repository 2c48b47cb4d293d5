//! `rulelag matrix`: who reaches what.

use std::io::Write as _;
use std::path::Path;

use netfilter_model::network::{DeviceKind, HostConfig, NodeId, RouteEntry, RouteKind};
use netfilter_model::tuple::Family;
use reports::matrix::{text, write_csv};
use reports::plot::{Chart, matrix_chart};
use serde_json::{Value, json};
use sim_core::config::ObjectName;
use sim_core::proxy::matrix::{
    Cell, Matrix, MatrixError, Mode, Outcome, PortMatrix, Question, World, WorldError,
};
use sim_core::proxy::profile::Profile;
use sim_core::proxy::state::Objects;

use super::{Status, not_written, print, result};
use crate::cli::{Matrix as Args, MatrixForm, RulesFamily};
use crate::file::Reader;
use crate::output::{Output, OutputError};
use crate::units::closest;

/// What cannot be answered, and what to do about it.
type Wrong = (String, String);

/// Prints or writes the matrix.
pub(super) fn execute(args: &Args) -> Status {
    let mut reader = Reader::default();
    let objects = reader.cluster(&args.files);
    if reader.finish() {
        return Status::BadInput;
    }
    let matrix = question(&objects, args).and_then(|question| {
        let matrix = Matrix::of(&objects, &question).map_err(|error| refused(&error))?;
        Ok((question, matrix))
    });
    let (question, matrix) = match matrix {
        Ok(found) => found,
        Err((message, help)) => {
            complain!("error: {message}\nhelp: {help}");
            return Status::BadInput;
        }
    };
    if let Some(dir) = &args.out {
        return match write(dir, &question, &matrix) {
            Ok(()) => Status::Held,
            Err(error) => not_written(&error),
        };
    }
    match printed(&matrix, args.output) {
        Ok(text) => {
            print(text);
            Status::Held
        }
        Err((message, help)) => {
            complain!("error: {message}\nhelp: {help}");
            Status::BadInput
        }
    }
}

fn question(objects: &Objects, args: &Args) -> Result<Question, Wrong> {
    let profile = Profile::parse(&args.profile).ok_or_else(|| {
        let message = format!("no such version of Kubernetes: {}", args.profile);
        (message, format!("1.28 to {}, or `current`", Profile::CURRENT))
    })?;
    let services = args.service.iter().map(|name| service(objects, name));
    let services = services.collect::<Result<Vec<_>, _>>()?;
    let mut asked = objects.services.values().filter(|service| {
        !service.cluster_ips.is_empty() && (services.is_empty() || services.contains(&service.name))
    });
    let Some(first) = asked.next() else {
        return Err((
            "no Service has a clusterIP".to_owned(),
            "give Services as `kubectl get -o yaml` prints them, with their EndpointSlices"
                .to_owned(),
        ));
    };
    let family = match args.family {
        Some(RulesFamily::V4) => Family::V4,
        Some(RulesFamily::V6) => Family::V6,
        None => Family::of(first.cluster_ips[0]),
    };
    let modes = args.mode.iter().filter_map(|name| Mode::parse(name));
    let mut modes: Vec<Mode> = modes.collect();
    if modes.is_empty() {
        modes.extend(Mode::RULES);
    }
    modes.sort_unstable();
    modes.dedup();
    let (node, external) = (args.node.clone(), args.external);
    Ok(Question { family, profile, modes, node, services, external })
}

/// Returns the Service of this name; the namespace may be left out if it is `default`.
fn service(objects: &Objects, name: &str) -> Result<ObjectName, Wrong> {
    let (namespace, own) = name.split_once('/').unwrap_or(("default", name));
    let wanted = ObjectName { namespace: namespace.to_owned(), name: own.to_owned() };
    if objects.services.contains_key(&wanted) {
        return Ok(wanted);
    }
    let known: Vec<String> = objects.services.keys().map(ToString::to_string).collect();
    let help = match closest(&wanted.to_string(), known.iter().map(String::as_str)) {
        Some(close) => format!("did you mean {close}?"),
        None => "as in `--service default/shop`".to_owned(),
    };
    Err((format!("no object is a Service {name}"), help))
}

fn refused(error: &MatrixError) -> Wrong {
    let help = match error {
        MatrixError::World(WorldError::NoNode(_)) => "Nodes, or `nodeName` of endpoints, say which",
        MatrixError::World(WorldError::NoNodes) => {
            "give the Nodes, or EndpointSlices whose endpoints have a `nodeName`"
        }
        MatrixError::World(WorldError::External(_)) => {
            "give an address of the family that nobody has, as in `--external 203.0.113.7`"
        }
        MatrixError::World(WorldError::Device(_)) => "device names have at most 15 characters",
        _ => "this is a bug in rulelag, not in the objects: please report it with them",
    };
    (error.to_string(), help.to_owned())
}

fn printed(matrix: &Matrix, form: MatrixForm) -> Result<String, Wrong> {
    match form {
        MatrixForm::Text => Ok(text(matrix)),
        MatrixForm::Csv => Ok(String::from_utf8_lossy(&csv(matrix)).into_owned()),
        MatrixForm::Json => Ok(format!("{:#}\n", to_json(matrix))),
        MatrixForm::Svg => match &matrix.ports[..] {
            [part] => matrix_chart(matrix, part).svg().map_err(|error| {
                (error.to_string(), "this is a bug in rulelag: please report it".to_owned())
            }),
            ports => Err((
                format!("a drawing shows one service port, and here are {}", ports.len()),
                "choose one by `--service`, or draw all by `--out DIR`".to_owned(),
            )),
        },
    }
}

fn csv(matrix: &Matrix) -> Vec<u8> {
    let mut out = Vec::new();
    write_csv(matrix, &mut out).expect("memory takes everything");
    out
}

fn write(dir: &Path, question: &Question, matrix: &Matrix) -> Result<(), OutputError> {
    let mut output = Output::open(dir)?;
    output.file("matrix.csv", |out| out.write_all(&csv(matrix)))?;
    let charts: Vec<Chart> = matrix.ports.iter().map(|part| matrix_chart(matrix, part)).collect();
    result::charts(&mut output, &charts)?;
    output.commit(json!({
        "rulelag": env!("CARGO_PKG_VERSION"),
        "command": "matrix",
        "node": matrix.world.node,
        "profile": question.profile.to_string(),
        "modes": question.modes.iter().map(|mode| mode.name()).collect::<Vec<_>>(),
    }))
}

/// Returns everything: the cells, and the hosts in which they were found, so that they can be
/// built elsewhere.
fn to_json(matrix: &Matrix) -> Value {
    json!({
        "node": matrix.world.node,
        "otherNode": matrix.world.other,
        "assumptions": matrix.world.assumptions,
        "leftOut": matrix.notes,
        "ports": matrix.ports.iter().map(port_json).collect::<Vec<_>>(),
        "network": network_json(&matrix.world),
    })
}

fn port_json(part: &PortMatrix) -> Value {
    let name = &part.port.name;
    let endpoints = part.endpoints.iter().map(|place| {
        json!({
            "address": place.addr, "port": place.port, "node": place.node,
            "ready": place.ready, "terminating": place.terminating,
        })
    });
    json!({
        "service": name.service.to_string(),
        "port": name.port,
        "protocol": name.protocol.to_string(),
        "endpoints": endpoints.collect::<Vec<_>>(),
        "cells": part.cells.iter().map(cell_json).collect::<Vec<_>>(),
    })
}

fn cell_json(cell: &Cell) -> Value {
    json!({
        "client": cell.client.name(),
        "clientAddress": cell.from,
        "target": cell.target.name(),
        "address": cell.to,
        "port": cell.port,
        "mode": cell.mode.name(),
        "outcomes": cell.outcomes.iter().map(outcome_json).collect::<Vec<_>>(),
    })
}

fn outcome_json(outcome: &Outcome) -> Value {
    json!({
        "verdict": outcome.verdict.name(),
        "endpoint": outcome.endpoint.map(|(addr, port)| json!({ "address": addr, "port": port })),
        "source": outcome.source.map(|source| source.addr),
        "sourceOf": outcome.source.map(|source| source.of.name()),
        "probability": outcome.share.to_f64(),
        "probabilityExact": outcome.share.to_string(),
        "inTurn": outcome.share.is_in_turn(),
        "why": outcome.why,
    })
}

fn network_json(world: &World) -> Value {
    let network = &world.network;
    let hosts = network.nodes().map(|(id, node)| {
        let listens = world.servers.iter().filter(|(of, ..)| *of == id);
        let listens = listens
            .map(|(_, protocol, port)| json!({ "protocol": protocol.to_string(), "port": port }));
        json!({
            "name": world.label(id),
            "forwards": node.host.sysctls.ip_forward,
            "silent": world.is_router(id),
            "devices": devices_json(&node.host),
            "routes": node.host.routes().iter().filter_map(|route| route_json(&node.host, route))
                .collect::<Vec<_>>(),
            "listens": listens.collect::<Vec<_>>(),
        })
    });
    let end = |&(id, dev): &(NodeId, _)| {
        let device = network.node(id).host.device(dev);
        json!({ "host": world.label(id), "device": device.map(|device| device.name.as_str()) })
    };
    let segments = network.segments().iter().filter(|segment| segment.len() > 1);
    let segments = segments.map(|segment| segment.iter().map(end).collect::<Vec<_>>());
    json!({ "hosts": hosts.collect::<Vec<_>>(), "segments": segments.collect::<Vec<_>>() })
}

fn devices_json(host: &HostConfig) -> Vec<Value> {
    let device = |device: &netfilter_model::network::Device| {
        let bridge = match device.kind {
            DeviceKind::Port { bridge, .. } => host.device(bridge),
            _ => None,
        };
        let addresses: Vec<String> = device
            .addresses
            .iter()
            .map(|address| format!("{}/{}", address.addr, address.len))
            .collect();
        json!({
            "name": device.name.as_str(),
            "bridge": device.kind == DeviceKind::Bridge,
            "master": bridge.map(|bridge| bridge.name.as_str()),
            "hairpin": matches!(device.kind, DeviceKind::Port { hairpin: true, .. }),
            "addresses": addresses,
        })
    };
    host.devices().iter().skip(1).map(device).collect()
}

/// Returns a route, if it is not one that comes with an address.
fn route_json(host: &HostConfig, route: &RouteEntry) -> Option<Value> {
    let RouteKind::Unicast { dev, gateway } = route.kind else {
        return None;
    };
    let device = host.device(dev)?;
    (route.source.is_none()).then(
        || json!({ "to": route.prefix.to_string(), "via": gateway, "dev": device.name.as_str() }),
    )
}
