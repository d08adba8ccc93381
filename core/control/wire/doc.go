// Package wire is the code that a node and a control plane share: the frames of the protocol
// (docs/protocol.md), their encoding, the preamble and the handshake, and the send queue of a
// connection.
//
// Frames are encoded by internal/pack. FrameReader cuts a byte stream into frames; Outbox writes frames in order.
// Outbox.mu is a leaf.
package wire
