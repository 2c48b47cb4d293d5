//! The crate from outside: golden files, and properties of what is printed.

mod csv;
mod made_up;
mod plot;
mod summary;
