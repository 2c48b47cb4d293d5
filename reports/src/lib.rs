//! Records to tables, CSV and charts.
