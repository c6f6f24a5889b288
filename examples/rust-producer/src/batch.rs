//! One columnar batch: its header, and the Arrow IPC stream that is the value of its record.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch, UInt16Array, UInt32Array};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;

/// What an ingest node says of one heap.
pub struct Heap {
    pub seq: u64,
    pub time_us: u64,
    pub channel_start: u16,
    pub received: u16,
    pub lost: u16,
    pub late: u16,
    pub flagged_fraction: f32,
    pub latency: f32,
}

/// Returns the text of the header `batch` and the value of the record.
///
/// `heaps` has 1 to 65,536 notifications of one node and scan. `sequence` is one more than that of the batch before.
pub fn encode(
    node: u16,
    scan_id: i64,
    channel_count: u16,
    heaps: &[Heap],
    producer: &str,
    sequence: u64,
) -> Result<(String, Vec<u8>), ArrowError> {
    let seq = heaps.iter().map(|heap| heap.seq).min().unwrap_or(0);
    let time = heaps.iter().map(|heap| heap.time_us).min().unwrap_or(0);
    let short = |of: fn(&Heap) -> u16| Arc::new(UInt16Array::from_iter_values(heaps.iter().map(of))) as ArrayRef;
    let long = |of: &dyn Fn(&Heap) -> u64| {
        let offsets: Result<Vec<u32>, _> = heaps.iter().map(|heap| u32::try_from(of(heap))).collect();
        let offsets = offsets.map_err(|_| ArrowError::ComputeError("more than 2^32 from the base".into()))?;
        Ok::<ArrayRef, ArrowError>(Arc::new(UInt32Array::from(offsets)))
    };
    let real = |of: fn(&Heap) -> f32| Arc::new(Float32Array::from_iter_values(heaps.iter().map(of))) as ArrayRef;
    let columns = RecordBatch::try_from_iter([
        ("seq", long(&|heap| heap.seq - seq)?),
        ("time", long(&|heap| heap.time_us - time)?),
        ("channel_start", short(|heap| heap.channel_start)),
        ("received", short(|heap| heap.received)),
        ("lost", short(|heap| heap.lost)),
        ("late", short(|heap| heap.late)),
        ("flagged_fraction", real(|heap| heap.flagged_fraction)),
        ("latency", real(|heap| heap.latency)),
    ])?;
    let mut writer = StreamWriter::try_new(Vec::new(), &columns.schema())?;
    writer.write(&columns)?;
    writer.finish()?;
    let header = format!(
        concat!(
            r#"{{"schema":"batch/1","message":"heap/1","rows":{},"#,
            r#""constants":{{"node":{},"scan_id":{},"channel_count":{}}},"#,
            r#""bases":{{"seq":{},"time":{}}},"producer":"{}","sequence":{}}}"#
        ),
        columns.num_rows(), node, scan_id, channel_count, seq, time, producer, sequence
    );
    Ok((header, writer.into_inner()?))
}
