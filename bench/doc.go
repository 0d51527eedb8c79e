// Package bench measures whole parts of the daemon side by side with others of their kind.
// Benchmarks of one package stand beside that package; README.md lists both with figures.
package bench
