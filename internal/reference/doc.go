// Package reference keeps documents equal to the program: the pages of docs/reference, which it generates, the tree,
// the bounds and the figures of ARCHITECTURE.md, and whatever a document names. Its tests fail when a page is behind.
// "go generate ./internal/reference" writes the pages, the figures, and the list of docs/metrics.md.
package reference

//go:generate go test . -run "TestPages|TestAPI|TestArchitecture" -update
//go:generate go test ../daemon -run TestMetricsAreDocumented -update
