//! Who reaches what, as text for a terminal and as CSV.
//!
//! ```text
//!                pod            external
//!  ───────────────────────────────────────
//!  ClusterIP     ok             timeout
//!  10.96.0.10    a b
//!                from own
//! ```

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use ::csv::{Terminator, WriterBuilder};
use comfy_table::ContentArrangement;
use sim_core::proxy::matrix::{
    Cell, Client, Matrix, Mode, Outcome, PortMatrix, Target, Verdict, Whose,
};

use crate::summary::{table, text as table_text};

/// The columns of `matrix.csv`. Later columns may only be appended.
pub const COLUMNS: &str = "service,port,protocol,node,client,client_address,target,address,\
    target_port,mode,verdict,endpoint,endpoint_port,endpoint_node,probability,probability_exact,\
    source,source_of,why";

/// Most endpoints that are named one by one in a cell.
const NAMED_MAX: usize = 5;
/// Probabilities that differ by less are the same to a reader: rules draw from 31 or 32 bits.
const SAME: f64 = 1e-6;

/// Returns what a client is called in a heading.
pub(crate) const fn client_title(client: Client) -> &'static str {
    match client {
        Client::Pod => "pod",
        Client::OtherPod => "pod, other node",
        Client::Node => "node",
        Client::External => "external",
        Client::Itself => "itself",
    }
}

/// Returns what a target is called in a heading.
pub(crate) const fn target_title(target: Target) -> &'static str {
    match target {
        Target::ClusterIp => "ClusterIP",
        Target::NodePort => "NodePort",
        Target::Localhost => "NodePort, localhost",
        Target::LoadBalancer => "LB IP",
        Target::ExternalIp => "externalIP",
        Target::WrongPort => "wrong port",
        Target::Ping => "ping",
    }
}

/// Returns an address with its port, if it has one.
pub(crate) fn place(addr: IpAddr, port: Option<u16>) -> String {
    port.map_or_else(|| addr.to_string(), |port| SocketAddr::new(addr, port).to_string())
}

/// Returns the letter, or letters, by which the legend names an endpoint.
pub(crate) fn letter(at: usize) -> String {
    let last = char::from(b'a' + (at % 26) as u8);
    match at / 26 {
        0 => last.to_string(),
        more => letter(more - 1) + &last.to_string(),
    }
}

/// Returns a share in percent, without the noise of the bits that it was drawn from.
pub(crate) fn percent(share: f64) -> String {
    let tenths = (share * 1000.0).round();
    match (tenths as u64, share > 0.0) {
        (0, true) => "<0.1 %".to_owned(),
        (1000, _) if share < 1.0 - SAME => ">99.9 %".to_owned(),
        (tenths, _) if tenths % 10 == 0 => format!("{} %", tenths / 10),
        (tenths, _) => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

/// Returns the endpoints of a port that some try of some cell could reach.
fn index_of(part: &PortMatrix, endpoint: (IpAddr, u16)) -> Option<usize> {
    part.endpoints.iter().position(|place| (place.addr, place.port) == endpoint)
}

/// Returns what is said of one end of many.
fn shares<'o, K: Ord>(
    outcomes: impl Iterator<Item = &'o Outcome>,
    key: impl Fn(&Outcome) -> Option<K>,
) -> BTreeMap<K, f64> {
    let mut shares = BTreeMap::new();
    for outcome in outcomes {
        if let Some(key) = key(outcome) {
            *shares.entry(key).or_insert(0.0) += outcome.share.to_f64();
        }
    }
    shares
}

/// Returns a cell in short lines: what its client sees, who answers, what the endpoint sees.
pub(crate) fn lines(part: &PortMatrix, cell: &Cell) -> Vec<String> {
    let verdicts = shares(cell.outcomes.iter(), |outcome| Some(outcome.verdict));
    let mut lines: Vec<String> = match verdicts.len() {
        1 => verdicts.keys().map(|verdict| words(*verdict).to_owned()).collect(),
        _ => {
            let line = |(verdict, share): (&Verdict, &f64)| {
                format!("{} {}", words(*verdict), percent(*share))
            };
            verdicts.iter().map(line).collect()
        }
    };
    let answered = || cell.outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Ok);
    let endpoints = shares(answered(), |outcome| index_of(part, outcome.endpoint?));
    if !endpoints.is_empty() {
        let mut line = endpoint_line(part, &endpoints);
        if answered().any(|outcome| outcome.share.is_in_turn()) {
            line.push_str(" in turn");
        }
        lines.push(line);
    }
    let sources = shares(answered(), |outcome| Some(outcome.source?.of));
    if !sources.is_empty() {
        let names: Vec<&str> = sources.keys().map(|of| whose(*of)).collect();
        lines.push(format!("from {}", names.join("/")));
    }
    lines
}

fn endpoint_line(part: &PortMatrix, endpoints: &BTreeMap<usize, f64>) -> String {
    let shares = || endpoints.values().copied();
    let (least, most) = (shares().fold(1.0, f64::min), shares().fold(0.0, f64::max));
    let even = most - least < SAME;
    if endpoints.len() > NAMED_MAX {
        let all = endpoints.len() == part.endpoints.len();
        let how_many = if all {
            format!("all {}", endpoints.len())
        } else {
            format!("{} of {}", endpoints.len(), part.endpoints.len())
        };
        return if even { how_many } else { format!("{how_many}, unevenly") };
    }
    let name = |(at, share): (&usize, &f64)| {
        if even { letter(*at) } else { format!("{} {}", letter(*at), percent(*share)) }
    };
    endpoints.iter().map(name).collect::<Vec<_>>().join(if even { " " } else { ", " })
}

/// Returns a verdict as people say it.
pub(crate) const fn words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::HostUnreachable => "no route",
        other => other.name(),
    }
}

const fn whose(of: Whose) -> &'static str {
    match of {
        Whose::OtherNode => "other node",
        other => other.name(),
    }
}

/// Returns whether two cells say the same to a reader.
fn agree(one: &Cell, other: &Cell) -> bool {
    let same = |(a, b): (&Outcome, &Outcome)| {
        (a.verdict, a.endpoint, a.source) == (b.verdict, b.endpoint, b.source)
            && (a.share.to_f64() - b.share.to_f64()).abs() < SAME
            && a.share.is_in_turn() == b.share.is_in_turn()
    };
    one.outcomes.len() == other.outcomes.len() && one.outcomes.iter().zip(&other.outcomes).all(same)
}

/// Returns the cells of a client and target, those that agree in one group with their modes.
pub(crate) fn groups(
    part: &PortMatrix,
    client: Client,
    target: (Target, IpAddr),
) -> Vec<(Vec<Mode>, &Cell)> {
    let mut groups: Vec<(Vec<Mode>, &Cell)> = Vec::new();
    let of = |cell: &&Cell| cell.client == client && (cell.target, cell.to) == target;
    for cell in part.cells.iter().filter(of) {
        match groups.iter_mut().find(|(_, known)| agree(known, cell)) {
            Some((modes, _)) => modes.push(cell.mode),
            None => groups.push((vec![cell.mode], cell)),
        }
    }
    groups
}

/// Returns the targets of a port, in order.
pub(crate) fn targets(part: &PortMatrix) -> Vec<(Target, IpAddr, Option<u16>)> {
    let mut targets: Vec<_> =
        part.cells.iter().map(|cell| (cell.target, cell.to, cell.port)).collect();
    targets.dedup();
    targets
}

/// Returns the clients of a port, in order.
pub(crate) fn clients(part: &PortMatrix) -> Vec<Client> {
    let is_there = |client: &Client| part.cells.iter().any(|cell| cell.client == *client);
    Client::ALL.into_iter().filter(is_there).collect()
}

/// Returns the first line about a port: its name, protocol and policies.
pub(crate) fn heading(part: &PortMatrix) -> String {
    let port = &part.port;
    let mut text = format!("{}  {}", port.name, port.name.protocol);
    for (is_local, policy) in [(port.internal_local, "internal"), (port.external_local, "external")]
    {
        if is_local {
            text.push_str(&format!("  {policy}TrafficPolicy Local"));
        }
    }
    if let Some(seconds) = port.affinity {
        text.push_str(&format!("  sessionAffinity ClientIP {seconds}s"));
    }
    let ranges: Vec<String> =
        port.load_balancer_source_ranges.iter().map(ToString::to_string).collect();
    if !ranges.is_empty() {
        text.push_str(&format!("  loadBalancerSourceRanges {}", ranges.join(",")));
    }
    text
}

/// Returns what the letters stand for: one text for each endpoint.
pub(crate) fn legend(part: &PortMatrix) -> Vec<String> {
    let endpoint = |(at, place): (usize, &sim_core::proxy::matrix::Place)| {
        let node = place.node.as_deref().map_or("no node".to_owned(), |node| format!("on {node}"));
        let state = match (place.ready, place.terminating) {
            (true, _) => "",
            (false, true) => ", terminating",
            (false, false) => ", not ready",
        };
        let address = SocketAddr::new(place.addr, place.port);
        format!("{} {address} {node}{state}", letter(at))
    };
    part.endpoints.iter().enumerate().map(endpoint).collect()
}

/// Returns the matrix for a terminal of a hundred columns.
pub fn text(matrix: &Matrix) -> String {
    let mut out = String::new();
    for part in &matrix.ports {
        out.push_str(&heading(part));
        out.push('\n');
        out.push_str(&endpoints_text(part));
        out.push('\n');
        out.push_str(&grid(part));
        out.push('\n');
        out.push_str(&reasons(part));
    }
    let node = &matrix.world.node;
    out.push_str(&format!(
        "the node is {node}; what comes from outside for node ports and balanced addresses comes \
         to it\n"
    ));
    if let Some(other) = &matrix.world.other {
        out.push_str(&format!("the other node is {other}\n"));
    }
    out.push_str(
        "from own: the endpoint sees the client's own address; from node: one of the node's\n",
    );
    let outcomes = matrix.ports.iter().flat_map(|part| &part.cells).flat_map(|cell| &cell.outcomes);
    if outcomes.into_iter().any(|outcome| outcome.share.is_in_turn()) {
        out.push_str(
            "in turn: nothing is drawn, each connection goes to the next; a share is that of many\n",
        );
    }
    for assumption in &matrix.world.assumptions {
        out.push_str(&format!("assumed: {assumption}\n"));
    }
    for note in &matrix.notes {
        out.push_str(&format!("left out: {note}\n"));
    }
    out
}

fn endpoints_text(part: &PortMatrix) -> String {
    const LISTED_MAX: usize = 12;
    let legend = legend(part);
    if legend.is_empty() {
        return "no endpoints\n".to_owned();
    }
    let mut out = String::new();
    for pair in legend[..legend.len().min(LISTED_MAX)].chunks(2) {
        let line = match pair {
            [one, other] => format!("  {one:<47} {other}"),
            one => format!("  {}", one.concat()),
        };
        out.push_str(line.trim_end());
        out.push('\n');
    }
    if legend.len() > LISTED_MAX {
        out.push_str(&format!("  and {} more\n", legend.len() - LISTED_MAX));
    }
    out
}

fn grid(part: &PortMatrix) -> String {
    let clients = clients(part);
    let titles = clients.iter().map(|client| client_title(*client));
    let header: Vec<&str> = std::iter::once("").chain(titles).collect();
    let mut table = table(&header);
    let last = targets(part).len();
    for (at, (target, to, port)) in targets(part).into_iter().enumerate() {
        let mut row = vec![format!("{}\n{}", target_title(target), place(to, port))];
        for &client in &clients {
            row.push(cell_text(part, client, (target, to)));
        }
        if at + 1 < last {
            // An empty line between rows.
            let lines = row.iter().map(|cell| cell.lines().count()).max().unwrap_or(0);
            while row[0].matches('\n').count() < lines {
                row[0].push('\n');
            }
        }
        table.add_row(row);
    }
    table_text(&table)
}

fn cell_text(part: &PortMatrix, client: Client, target: (Target, IpAddr)) -> String {
    let groups = groups(part, client, target);
    match &groups[..] {
        [] => "-".to_owned(),
        [(_, cell)] => lines(part, cell).join("\n"),
        groups => {
            let group = |(modes, cell): &(Vec<Mode>, &Cell)| {
                let modes: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
                format!("{}:\n{}", modes.join(", "), lines(part, cell).join("\n"))
            };
            groups.iter().map(group).collect::<Vec<_>>().join("\n")
        }
    }
}

/// A verdict that is not `ok`, its reason, and under which modes.
type Reason<'w> = (Verdict, &'w str, Vec<Mode>);

/// Returns which targets each client does not reach, by reason.
fn unreached(part: &PortMatrix) -> BTreeMap<Reason<'_>, BTreeMap<Client, Vec<Target>>> {
    type Who = (Client, Target, IpAddr);
    let mut modes: BTreeMap<(Verdict, &str, Who), Vec<Mode>> = BTreeMap::new();
    for cell in &part.cells {
        for outcome in cell.outcomes.iter().filter(|outcome| outcome.verdict != Verdict::Ok) {
            let who = (cell.client, cell.target, cell.to);
            let known = modes.entry((outcome.verdict, &outcome.why, who)).or_default();
            if known.last() != Some(&cell.mode) {
                known.push(cell.mode);
            }
        }
    }
    let mut reasons: BTreeMap<Reason<'_>, BTreeMap<Client, Vec<Target>>> = BTreeMap::new();
    for ((verdict, why, (client, target, _)), modes) in modes {
        let targets = reasons.entry((verdict, why, modes)).or_default();
        let targets = targets.entry(client).or_default();
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    reasons
}

/// Says why what is not answered is not.
fn reasons(part: &PortMatrix) -> String {
    let groups = unreached(part);
    if groups.is_empty() {
        return String::new();
    }
    let all: Vec<Mode> = {
        let mut all: Vec<Mode> = part.cells.iter().map(|cell| cell.mode).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let mut table = table(&["not ok", "who", "why"]);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    for ((verdict, why, modes), clients) in groups {
        let mut alike: Vec<(Vec<Client>, Vec<Target>)> = Vec::new();
        for (client, targets) in clients {
            match alike.iter_mut().find(|(_, known)| *known == targets) {
                Some((clients, _)) => clients.push(client),
                None => alike.push((vec![client], targets)),
            }
        }
        let who = alike.iter().map(|(clients, targets)| {
            let clients: Vec<&str> = clients.iter().map(|client| client_title(*client)).collect();
            let targets: Vec<&str> = targets.iter().map(|target| target_title(*target)).collect();
            format!("{} → {}", clients.join("; "), targets.join("; "))
        });
        let who = who.collect::<Vec<_>>().join("\n");
        let why = if modes == all {
            why.to_owned()
        } else {
            let modes: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
            format!("{}: {why}", modes.join(", "))
        };
        table.add_row(vec![words(verdict).to_owned(), who, why]);
    }
    table_text(&table) + "\n"
}

/// Writes the matrix as CSV: a row for each end of each cell.
///
/// # Errors
///
/// If the writer fails.
pub fn write_csv(matrix: &Matrix, out: impl io::Write) -> Result<(), ::csv::Error> {
    let mut csv = WriterBuilder::new().terminator(Terminator::Any(b'\n')).from_writer(out);
    csv.write_record(COLUMNS.split(','))?;
    for part in &matrix.ports {
        for cell in &part.cells {
            for outcome in &cell.outcomes {
                csv.write_record(row(matrix, part, cell, outcome))?;
            }
        }
    }
    csv.flush()?;
    Ok(())
}

fn row(matrix: &Matrix, part: &PortMatrix, cell: &Cell, outcome: &Outcome) -> [String; 19] {
    let name = &part.port.name;
    let endpoint = outcome.endpoint;
    let node = endpoint.and_then(|of| part.endpoints[index_of(part, of)?].node.clone());
    [
        name.service.to_string(),
        name.port.clone(),
        name.protocol.to_string(),
        matrix.world.node.clone(),
        cell.client.name().to_owned(),
        cell.from.to_string(),
        cell.target.name().to_owned(),
        cell.to.to_string(),
        cell.port.map(|port| port.to_string()).unwrap_or_default(),
        cell.mode.name().to_owned(),
        outcome.verdict.name().to_owned(),
        endpoint.map(|(addr, _)| addr.to_string()).unwrap_or_default(),
        endpoint.map(|(_, port)| port.to_string()).unwrap_or_default(),
        node.unwrap_or_default(),
        outcome.share.to_f64().to_string(),
        outcome.share.to_string(),
        outcome.source.map(|source| source.addr.to_string()).unwrap_or_default(),
        outcome.source.map(|source| source.of.name().to_owned()).unwrap_or_default(),
        outcome.why.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_letters() {
        assert_eq!(
            [0, 25, 26, 51, 52, 701, 702].map(letter),
            ["a", "z", "aa", "az", "ba", "zz", "aaa"]
        );
    }

    #[test]
    fn shares_read_easily() {
        let third = 715_827_883.0 / f64::from(1u32 << 31);
        assert_eq!(
            [1.0, 0.5, third, 0.0004, 0.9999].map(percent),
            ["100 %", "50 %", "33.3 %", "<0.1 %", ">99.9 %"]
        );
    }
}
