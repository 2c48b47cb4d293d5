//! The built-in scenarios.

/// Name and text of each, in the order of `rulelag scenarios`.
const SCENARIOS: &[(&str, &str)] = &[
    ("rolling-update", include_str!("../library/rolling-update.yaml")),
    ("delete-pod", include_str!("../library/delete-pod.yaml")),
    ("prestop", include_str!("../library/prestop.yaml")),
    ("scale-to-zero", include_str!("../library/scale-to-zero.yaml")),
    ("proxy-modes", include_str!("../library/proxy-modes.yaml")),
    ("sync-cost", include_str!("../library/sync-cost.yaml")),
];

/// The one that `rulelag sweep` runs without a scenario.
pub(crate) const DEFAULT: &str = "rolling-update";

/// Returns the text of the scenario called `name`.
pub(crate) fn get(name: &str) -> Option<&'static str> {
    SCENARIOS.iter().find(|&&(known, _)| known == name).map(|&(_, text)| text)
}

/// Returns the names of all of them.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SCENARIOS.iter().map(|&(name, _)| name)
}

#[cfg(test)]
mod tests {
    use crate::file::Reader;

    #[test]
    fn every_scenario_and_every_point_of_its_grid_can_be_run() {
        for name in super::names() {
            let mut reader = Reader::default();
            let scenario = reader.scenario(name, &[]);
            if let Some(scenario) = &scenario {
                assert!(scenario.question.is_some(), "{name} asks nothing");
                assert_eq!(scenario.name, name);
                reader.points(scenario);
            }
            assert!(!reader.finish() && scenario.is_some(), "{name}");
        }
    }
}
