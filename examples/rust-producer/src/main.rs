//! Writes notifications of one ingest node as a columnar batch into a folder: what a producer puts into the record's header and value.

mod batch;

use batch::{Heap, encode};

fn heaps(first: u64, begin_us: u64) -> Vec<Heap> {
    (0..100)
        .map(|at| Heap {
            seq: first + at,
            time_us: begin_us + at * 31,
            channel_start: (at % 16) as u16 * 64,
            received: 64,
            lost: 0,
            late: 0,
            flagged_fraction: 0.25,
            latency: 0.5,
        })
        .collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: heap-producer FOLDER")?;
    let (header, value) = encode(42, 7, 64, &heaps(1_000_000, 1_795_276_800_000_000), "rust-42", 0)?;
    std::fs::write(format!("{folder}/header.json"), header)?;
    std::fs::write(format!("{folder}/value.arrow"), value)?;
    Ok(())
}
