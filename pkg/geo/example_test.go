package geo_test

import (
	"fmt"

	"github.com/blackhole/blackhole/pkg/geo"
)

func ExampleDistance() {
	berlin := geo.Point{Lat: 52.52, Lon: 13.405}
	paris := geo.Point{Lat: 48.8566, Lon: 2.3522}
	fmt.Printf("%.1f km\n", geo.Distance(berlin, paris)/1000)
	// Output: 877.5 km
}

func ExampleNewPoint() {
	_, err := geo.NewPoint(52.52, 181)
	fmt.Println(err)
	// Output: longitude: must be between -180 and 180 degrees
}

// A record belongs to every cell of the index around its place.
func ExampleIndexCells() {
	fmt.Println(geo.IndexCells(geo.Point{Lat: 57.64911, Lon: 10.40744}))
	// Output: [global u u4 u4p u4pr u4pru u4pruy]
}

// A search within 100 km of Taveuni, Fiji, crosses the antimeridian.
func ExampleCover() {
	taveuni, err := geo.NewPoint(-16.85, 179.97)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(geo.Cover(geo.Disc{Center: taveuni, Radius: 100_000}, 8))
	// Output:
	// [2hb 2j0 ruz rvp]
}

// The middle of a cell hides the exact place.
func ExampleCell_Center() {
	exact := geo.Point{Lat: 57.64911, Lon: 10.40744}
	fmt.Println(geo.CellOf(exact, 4).Center())
	// Output: {57.568359375 10.37109375}
}
