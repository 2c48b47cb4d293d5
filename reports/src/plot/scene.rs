//! A drawing as a list of shapes, and how a plotters backend draws it.
//!
//! Coordinates are in units of the SVG, from the top left. Backends know whole coordinates only,
//! so everything is drawn at [`SCALE`] times the size.

use plotters::prelude::DrawingBackend;

use super::Error;
use super::font;
use super::style::{Marker, Paint, Pen};

/// Backend coordinates in a unit of the scene.
pub(super) const SCALE: u32 = 4;

pub(super) type Point = (f64, f64);

/// Where a line of text lies about its point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Clone, Debug)]
enum Shape {
    Line { points: Vec<Point>, paint: Paint, width: f64 },
    Polygon { points: Vec<Point>, paint: Paint },
    Rect { from: Point, to: Point, paint: Paint },
    Circle { at: Point, radius: f64, paint: Paint },
    Text { at: Point, text: String, em: f64, paint: Paint, anchor: Anchor },
}

/// A drawing.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) title: String,
    width: u32,
    height: u32,
    shapes: Vec<Shape>,
}

impl Scene {
    pub(super) fn new(title: &str, width: u32, height: u32) -> Scene {
        Scene { title: title.to_owned(), width, height, shapes: Vec::new() }
    }

    pub(super) fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    pub(super) fn line(&mut self, points: &[Point], paint: Paint, width: f64) {
        self.shapes.push(Shape::Line { points: points.to_vec(), paint, width });
    }

    /// Draws a line in dashes; `dash` holds lengths drawn and left out, in turn.
    pub(super) fn dashed(&mut self, points: &[Point], paint: Paint, width: f64, dash: &[f64]) {
        if dash.is_empty() {
            return self.line(points, paint, width);
        }
        let mut which = 0;
        let mut left = dash[0];
        let mut piece: Vec<Point> = points.first().copied().into_iter().collect();
        for pair in points.windows(2) {
            let (mut from, to) = (pair[0], pair[1]);
            loop {
                let (dx, dy) = (to.0 - from.0, to.1 - from.1);
                let length = (dx * dx + dy * dy).sqrt();
                if length <= left {
                    left -= length;
                    piece.push(to);
                    break;
                }
                let end = (from.0 + dx * left / length, from.1 + dy * left / length);
                piece.push(end);
                if which % 2 == 0 {
                    self.line(&piece, paint, width);
                }
                piece = vec![end];
                from = end;
                which = (which + 1) % dash.len();
                left = dash[which];
            }
        }
        if which % 2 == 0 && piece.len() > 1 {
            self.line(&piece, paint, width);
        }
    }

    pub(super) fn polygon(&mut self, points: &[Point], paint: Paint) {
        self.shapes.push(Shape::Polygon { points: points.to_vec(), paint });
    }

    pub(super) fn rect(&mut self, from: Point, to: Point, paint: Paint) {
        self.shapes.push(Shape::Rect { from, to, paint });
    }

    pub(super) fn marker(&mut self, (x, y): Point, marker: Marker, r: f64, paint: Paint) {
        match marker {
            Marker::Circle => {
                self.shapes.push(Shape::Circle { at: (x, y), radius: r, paint });
            }
            Marker::Square => {
                let r = r * 0.9;
                self.rect((x - r, y - r), (x + r, y + r), paint);
            }
            Marker::Triangle => {
                let r = r * 1.2;
                self.polygon(
                    &[(x, y - r), (x + r * 0.9, y + r * 0.7), (x - r * 0.9, y + r * 0.7)],
                    paint,
                );
            }
            Marker::Diamond => {
                let r = r * 1.25;
                self.polygon(&[(x, y - r), (x + r, y), (x, y + r), (x - r, y)], paint);
            }
            Marker::Cross => {
                let r = r * 0.95;
                self.line(&[(x - r, y - r), (x + r, y + r)], paint, 2.0);
                self.line(&[(x - r, y + r), (x + r, y - r)], paint, 2.0);
            }
        }
    }

    /// Draws a line of text, its capitals centred on the point's height.
    pub(super) fn text(&mut self, at: Point, text: &str, em: f64, paint: Paint, anchor: Anchor) {
        if text.is_empty() {
            return;
        }
        self.shapes.push(Shape::Text { at, text: text.to_owned(), em, paint, anchor });
    }

    /// Returns each text and the rectangle that it covers.
    #[cfg(test)]
    pub(super) fn text_boxes(&self) -> Vec<(&str, super::sheet::Area)> {
        self.shapes
            .iter()
            .filter_map(|shape| {
                let Shape::Text { at: (x, y), text, em, anchor, .. } = shape else {
                    return None;
                };
                let width = font::width(text, *em) / font::SLACK;
                let left = match anchor {
                    Anchor::Start => *x,
                    Anchor::Middle => x - width / 2.0,
                    Anchor::End => x - width,
                };
                // From the top of capitals to the foot of digits.
                let (top, bottom) = (y - em * 0.37, y + em * 0.37);
                Some((text.as_str(), super::sheet::Area { left, top, right: left + width, bottom }))
            })
            .collect()
    }

    /// Draws the scene.
    pub(super) fn draw<B: DrawingBackend>(&self, backend: &mut B) -> Result<(), Error> {
        let error = |e: &dyn std::fmt::Display| Error::Draw(e.to_string());
        backend.ensure_prepared().map_err(|e| error(&e))?;
        let (width, height) = backend.get_size();
        let white = Pen { paint: super::style::WHITE, width: 1 };
        backend
            .draw_rect((0, 0), (width as i32, height as i32), &white, true)
            .map_err(|e| error(&e))?;
        for shape in &self.shapes {
            shape.draw(backend).map_err(|e| error(&e))?;
        }
        backend.present().map_err(|e| error(&e))
    }
}

fn whole(x: f64) -> i32 {
    (x * f64::from(SCALE)).round() as i32
}

fn at((x, y): Point) -> (i32, i32) {
    (whole(x), whole(y))
}

impl Shape {
    fn draw<B: DrawingBackend>(
        &self,
        backend: &mut B,
    ) -> Result<(), plotters_backend::DrawingErrorKind<B::ErrorType>> {
        match self {
            Shape::Line { points, paint, width } => {
                let mut path: Vec<_> = points.iter().map(|&p| at(p)).collect();
                path.dedup();
                if path.len() < 2 {
                    return Ok(());
                }
                backend.draw_path(path, &Pen { paint: *paint, width: whole(*width).max(2) as u32 })
            }
            Shape::Polygon { points, paint } => {
                let path: Vec<_> = points.iter().map(|&p| at(p)).collect();
                backend.fill_polygon(path, &Pen { paint: *paint, width: 1 })
            }
            Shape::Rect { from, to, paint } => {
                let (from, mut to) = (at(*from), at(*to));
                if to.0 < from.0 || to.1 < from.1 {
                    return Ok(());
                }
                // What is there is seen.
                to = (to.0.max(from.0 + 1), to.1.max(from.1 + 1));
                backend.draw_rect(from, to, &Pen { paint: *paint, width: 1 }, true)
            }
            Shape::Circle { at: centre, radius, paint } => backend.draw_circle(
                at(*centre),
                whole(*radius) as u32,
                &Pen { paint: *paint, width: 1 },
                true,
            ),
            Shape::Text { at: (x, y), text, em, paint, anchor } => {
                let line = font::Line { em: em * f64::from(SCALE), paint: *paint, anchor: *anchor };
                // Backends centre the height of an x; capitals and digits are taller.
                backend.draw_text(text, &line, (whole(*x), whole(y + em * 0.085)))
            }
        }
    }
}
