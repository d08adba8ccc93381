// Package wire is what a node and a control plane share: the frames of the protocol
// (docs/protocol.md), their encoding, the preamble and the handshake, and the queue of
// what one connection has to send.
//
// Frames are encoded by internal/pack. FrameReader cuts a byte stream into frames and
// sanitizes the texts in them; Outbox writes frames in order. Outbox.mu is a leaf.
package wire
