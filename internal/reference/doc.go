// Package reference keeps the pages of docs/reference equal to the program: commands, settings, errors, limits, HTTP,
// gRPC, DNS, formats and the tests behind each promise. Its tests generate each page from code and compare it; they fail when a page is behind. "go generate
// ./internal/reference" writes the pages, and the list of docs/metrics.md.
package reference

//go:generate go test . -run "TestPages|TestAPI" -update
//go:generate go test ../daemon -run TestMetricsAreDocumented -update
