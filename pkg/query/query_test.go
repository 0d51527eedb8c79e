package query

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestTextOfClauses(t *testing.T) {
	low, high := 24000.0, 80000.5
	for want, c := range map[string]Clause{
		"name":                       {Field: "name", Op: OpStated},
		"!name":                      {Field: "name", Op: OpStated, Not: true},
		"name=a,b":                   {Field: "name", Op: OpAny, Values: []string{"a", "b"}},
		`name?!="a,b"," c",""`:       {Field: "name", Op: OpAny, Values: []string{"a,b", " c", ""}, Not: true, OrUnstated: true},
		"tags&=a":                    {Field: "tags", Op: OpAll, Values: []string{"a"}},
		"name^=a":                    {Field: "name", Op: OpPrefix, Values: []string{"a"}},
		"memory_mb>=24000":           {Field: "memory_mb", Op: OpRange, Min: &low},
		"memory_mb!<=80000.5":        {Field: "memory_mb", Op: OpRange, Max: &high, Not: true},
		"memory_mb?>=24000<=80000.5": {Field: "memory_mb", Op: OpRange, Min: &low, Max: &high, OrUnstated: true},
	} {
		require.Equal(t, want, c.String())
	}
}

// A place without one of its numbers would be another place.
func TestPlacesAreRead(t *testing.T) {
	var q Query
	require.NoError(t, json.Unmarshal([]byte(`{"near":{"latitude":0,"longitude":-2,"radius_km":3}}`), &q))
	require.Equal(t, &Near{Longitude: -2, RadiusKM: new(3.0)}, q.Near)
	for text, field := range map[string]string{
		`{"longitude":1}`:                         "latitude",
		`{"latitude":1}`:                          "longitude",
		`{"latitude":1,"longitude":1,"radius":1}`: "radius",
		`{"latitude":"1","longitude":1}`:          "latitude",
	} {
		err := json.Unmarshal([]byte(text), new(Near))
		require.ErrorIs(t, err, fault.Invalid, text)
		require.Equal(t, field, fault.FieldOf(err), text)
	}
}

func TestLeftOutRecordsAreCounted(t *testing.T) {
	var none *LeftOut
	require.Nil(t, none.Join(nil))
	require.Empty(t, none.String())
	a := &LeftOut{Records: 1, Features: []string{"b"}}
	require.Same(t, a, none.Join(a))
	require.Same(t, a, a.Join(nil))
	require.Equal(t, "1 record is left out, because it needs a newer version of blackholed with b", a.String())
	sum := a.Join(&LeftOut{Records: 2, AtLeast: true, Features: []string{"a", "b"}})
	require.Equal(t, &LeftOut{Records: 3, AtLeast: true, Features: []string{"a", "b"}}, sum)
	require.Equal(t, "at least 3 records are left out, because they need a newer version of blackholed with a, b", sum.String())
	sum.Need("c", "d", "e", "f", "g", "h", "i")
	require.Len(t, sum.Features, 8)
}

func TestMenusJoin(t *testing.T) {
	var all Menu
	first := Menu{Countries: map[string]int{"DE": 1}, Most: Capacities{CPUCores: 8, MemoryMB: 1}}
	all.Join(first)
	all.Join(Menu{Types: map[string]int{"cdn": 2}, Countries: map[string]int{"DE": 1, "FR": 1}, Most: Capacities{CPUCores: 4, MemoryMB: 2, GPUs: 1}})
	require.Equal(t, Menu{
		Types: map[string]int{"cdn": 2}, Countries: map[string]int{"DE": 2, "FR": 1}, Most: Capacities{CPUCores: 8, MemoryMB: 2, GPUs: 1},
	}, all)
	require.Equal(t, map[string]int{"DE": 1}, first.Countries, "a joined menu stays as it is")
}
