// Package disk knows the free space below the data of a peer.
package disk

// Low is the free space, in bytes, below which a peer is in danger: its databases stop at a full disk.
const Low = 250e6
