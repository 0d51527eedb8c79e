// Package proto is the root of the wire schema: the .proto files under
// proto/blackhole and the Go code generated beside them.
//
// Only wire names live here. The generated packages are imported where bytes
// become domain values (pkg/records, internal/discovery/keeper, the front ends) and nowhere
// above. A field number or an enum value that was released is never reused;
// remove it with a reserved statement.
//
// After a change run
//
//	go generate ./proto
//
// from the root of the repository. It needs nothing but Go: the compiler and
// both plugins are pinned in internal/tools/go.mod. The result is committed,
// so that building the module never needs the tools.
package proto
