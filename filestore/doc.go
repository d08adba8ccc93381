// Package filestore is a [store.Store] in a file that it shares, in both
// directions, with PyTorch's torch.distributed.FileStore: the same bytes, the
// same locks, the same bookkeeping (docs/spec/filestore-format.md).
//
// The file is a log of records (klen, key, vlen, value) that only grows. A Store
// keeps the file open, applies what was appended since its last read in memory,
// and answers from there:
//
//   - A writer holds flock(2) exclusively and adds whole records, each in one
//     write. A reader of records holds it shared. Where the file system is
//     this machine's own, a reader that finds the file no longer than what it
//     has read asks for no lock: there is nothing to read.
//   - Every operation makes sure that the path still names the file, as seen by a
//     check that is at most a millisecond old. A file that is gone, was replaced,
//     got shorter or holds something else is an error at once
//     ([ErrVanished], [ErrReplaced], [ErrForeign]), and the Store stays
//     failed. Stock processes read on from memory or wait for ever.
//   - Waiting calls are woken by inotify on this machine's own file systems, and
//     poll elsewhere, at first often, then less so.
//   - A wait, for a key as well as for a lock, ends with its context.
//
// # Beside stock writers
//
// Stock processes wait for the lock in the kernel, ours retry. That costs ours
// little. Next to two stock processes that add without a pause, on a busy machine
// with two processors, one of ours did 15 to 40 % of all adds (a fair share: 33)
// and waited 0.2 to 1.9 s at worst, the stock ones 0.2 to 0.9 s. Next to four it
// did 18 to 61 % (20) and waited 0.4 to 2.7 s, the stock ones 0.4 to 1.8 s. Such
// long waits occur when the kernel preempts a process that holds the lock. A
// variant with a thread that also waits in the kernel, and is abandoned when its
// call ends, was no better (24 to 46 % and 0.3 to 2.4 s, 30 to 74 % and 0.5 to 2.8
// s), so there is none.
//
// # Torn records
//
// A stock writer needs four writes for a record. If it is killed between them, it
// leaves an incomplete one. Stock readers that reach it spin forever and keep their
// lock. A Store reads up to the last complete record and continues.
//
// The next writer of ours covers the torn bytes before it appends: it turns them
// into one record that means nothing, by writing nine bytes over their beginning
// (the key "-", which deletes the entry with the empty name, and a length that
// makes the rest its value). The file is never cut. This is safe while stock
// processes share it:
//
//   - Under the exclusive lock no process is in the middle of writing or reading.
//   - No process's position is past the last complete record, since a stock reader
//     advances its position only after it has reached the end, and no byte before
//     that position changes.
//   - The record of the killed writer was never acknowledged.
//   - Each step leaves either the torn record or a complete one. So a Store that is
//     killed meanwhile does no harm, and no invented value is ever visible.
//
// A stock process that writes without reading (set, delete_key) may have appended
// whole records to the torn one before any reader noticed it. Records that follow
// one of its lengths are kept if that length reaches beyond the end of the file.
// Otherwise all readers, stock ones included, lose the record boundaries from there
// on. A Store then either reads what they read or fails with [ErrForeign].
//
// # Differences from the reference
//
//   - Append appends. The reference's append compares and sets in a way that
//     takes a value equal to the one appended for its own success, so that the
//     second of two equal appends is lost.
//   - Delete reports whether the key existed. The reference always reports that it
//     did. Both write the record either way.
//   - Wait counts each key as soon as it was written once, as the Store interface
//     asks, even if it was deleted before the call looked. The reference waits
//     until all keys exist at the same time.
//   - MultiSet writes all its records under one lock, in one write.
//   - The counters of a closing Store change in one step, and the file is removed
//     before the lock is released, so that a process that waits for the lock to
//     open it sees that it is gone.
//   - Deadlines are exact. The reference counts whole seconds.
package filestore
