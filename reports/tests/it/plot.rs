use expect_test::expect_file;
use reports::collect::Detail;
use reports::plot::{Chart, RunView, SweepView, bin_width, run_charts, sweep_charts};
use std::path::Path;
use std::time::Duration;

use crate::made_up;

fn check(charts: &[Chart], names: &[&str]) {
    let drawn: Vec<&str> = charts.iter().map(Chart::name).collect();
    assert_eq!(drawn, names);
    for chart in charts {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let path = path.join(format!("{}.svg", chart.name()));
        expect_file![path].assert_eq(&chart.svg().unwrap());
    }
}

#[test]
fn the_charts_of_a_sweep() {
    let (axes, points) = made_up::usual_grid();
    let view = SweepView { scenario: "rolling-update", seed: 7, axes: &axes, points: &points };
    check(&sweep_charts(&view), &["loss", "loss_heat", "last_node", "sync", "loss_by_cause"]);
}

#[test]
fn the_charts_of_a_run() {
    let detail = Detail::Timeline(Duration::from_millis(250));
    let records = made_up::records((0..3).map(made_up::window).collect(), detail);
    let view = RunView { scenario: "rolling-update", seed: 7, run: 0, records: &records };
    check(&run_charts(&view), &["timeline", "windows"]);
}

#[test]
fn without_detail_there_is_no_timeline() {
    let records = made_up::records(vec![made_up::window(0)], Detail::Off);
    let view = RunView { scenario: "rolling-update", seed: 7, run: 0, records: &records };
    let charts = run_charts(&view);
    let names: Vec<&str> = charts.iter().map(Chart::name).collect();
    assert_eq!(names, ["windows"]);
}

#[test]
fn a_png_is_the_same_drawing_twice_as_dense() {
    let records = made_up::records(vec![made_up::window(0)], Detail::Off);
    let view = RunView { scenario: "rolling-update", seed: 7, run: 0, records: &records };
    let chart = &run_charts(&view)[0];
    let bytes = chart.png().unwrap();
    assert_eq!(bytes, chart.png().unwrap());
    let decoder = png::Decoder::new(std::io::Cursor::new(&bytes));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let size = format!("width=\"{}\" height=\"{}\"", info.width / 2, info.height / 2);
    assert!(chart.svg().unwrap().starts_with(&format!("<svg {size}")));
    // White paper, and ink on it.
    assert_eq!(&pixels[..3], [255, 255, 255]);
    let dark = pixels.chunks(3).filter(|p| p.iter().all(|&c| c < 90)).count();
    assert!(dark > 2_000, "{dark} dark pixels");
}

#[test]
fn bins_are_round() {
    assert_eq!(bin_width(Duration::from_secs(30)), Duration::from_millis(100));
    assert_eq!(bin_width(Duration::from_secs(31)), Duration::from_millis(200));
    assert_eq!(bin_width(Duration::ZERO), Duration::from_nanos(1));
}
