package geo

import (
	"fmt"
	"testing"
)

func BenchmarkDistance(b *testing.B) {
	berlin, paris := Point{52.52, 13.405}, Point{48.8566, 2.3522}
	for b.Loop() {
		Distance(berlin, paris)
	}
}

func BenchmarkMinDistance(b *testing.B) {
	berlin, box := Point{52.52, 13.405}, Cell("u09").Box()
	for b.Loop() {
		MinDistance(berlin, box)
	}
}

func BenchmarkCellOf(b *testing.B) {
	berlin := Point{52.52, 13.405}
	for b.Loop() {
		CellOf(berlin, MaxLen)
	}
}

func BenchmarkCover(b *testing.B) {
	for _, maxCells := range []int{32, 64, 256} {
		for _, km := range []float64{1, 100, 1000, 10000} {
			b.Run(fmt.Sprintf("max=%d/km=%v", maxCells, km), func(b *testing.B) {
				d := Disc{Point{52.52, 13.405}, km * 1000}
				b.ReportAllocs()
				for b.Loop() {
					Cover(d, maxCells)
				}
				b.ReportMetric(float64(len(Cover(d, maxCells))), "cells")
			})
		}
	}
	b.Run("max=64/pole", func(b *testing.B) {
		d := Disc{Point{89.99, 13.405}, 100_000}
		for b.Loop() {
			Cover(d, 64)
		}
	})
}
