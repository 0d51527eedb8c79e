package sim

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/blackhole/blackhole/internal/platform/cities"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// market draws offers and questions. Its cities are the largest, and small ones near the antimeridian and the Arctic Circle.
type market struct {
	*rand.Rand
	cities []cities.City
	people int
	hot    float64 // part of offers and questions that are about the first city alone
	single bool    // all are of the first kind
	made   int
}

func newMarket(seed uint64) *market {
	m := &market{Rand: rand.New(rand.NewPCG(seed, 1))}
	all, err := cities.All()
	if err != nil {
		panic(err) // impossible: the table is part of the program
	}
	m.cities = all[:46] // the largest
	for _, name := range []string{"Suva", "Apia", "Reykjavik", "Alofi"} {
		c, err := cities.Find(all, name)
		if err != nil {
			panic(err) // impossible: the table has it
		}
		m.cities = append(m.cities[:len(m.cities):len(m.cities)], c)
	}
	for _, c := range m.cities {
		m.people += c.Population
	}
	return m
}

// city draws one as people are distributed.
func (m *market) city() cities.City {
	if m.Float64() < m.hot {
		return m.cities[0]
	}
	left := m.IntN(m.people)
	for _, c := range m.cities {
		if left -= c.Population; left < 0 {
			return c
		}
	}
	return m.cities[0]
}

func kinds() []string { return []string{"compute", "storage"} }

func (m *market) kind() string {
	if m.single {
		return kinds()[0]
	}
	return kinds()[m.IntN(2)]
}

// offer draws a service.
func (m *market) offer() records.Offer {
	c := m.city()
	m.made++
	kind := m.kind()
	lat, lon := m.near(c.Point.Lat), m.near(c.Point.Lon)
	if math.Abs(lon) > 180 {
		lon -= math.Copysign(360, lon)
	}
	price, uptime := m.price(), 90+10*m.Float64()
	o := records.Offer{
		ID:       fmt.Sprintf("%s-%05d", kind, m.made),
		Metadata: records.Metadata{Type: kind, Name: kind + " in " + c.Name},
		Location: &records.Location{Latitude: &lat, Longitude: &lon, Country: c.Country, City: c.Name},
		Pricing:  &records.Pricing{Currency: queries.DefaultCurrency, BasePrice: &price, PriceUnit: unitOf(kind)},
		Health:   &records.Health{Status: "HEALTHY", UptimePercent: &uptime},
	}
	if kind == "compute" {
		o.Capabilities = &records.Capabilities{Compute: &records.Compute{CPUCores: 1 << m.IntN(7), MemoryMB: 1000 << m.IntN(9)}}
	} else {
		total := uint64(1+m.IntN(1000)) * 1e12
		o.Capabilities = &records.Capabilities{Storage: &records.Storage{TotalSpace: total, AvailableSpace: total / 2}}
	}
	return o
}

func unitOf(kind string) string {
	if kind == "compute" {
		return "per-hour"
	}
	return "per-gb-month"
}

func (m *market) price() float64 { return math.Round(1e4*(0.01+m.Float64())) / 1e4 }

// near is a coordinate within 0.2 degrees.
func (m *market) near(x float64) float64 { return math.Round(1e5*(x+0.4*(m.Float64()-0.5))) / 1e5 }

// question draws a query around a city. Nearly no two are equal, so that no cache answers.
// Providers that do not answer are asked for as well: what the asker has found out about
// them would be part of its answer, and the oracle knows only records.
func (m *market) question() query.Query {
	c := m.city()
	radius := []float64{25, 50, 100, 300, 1000}[m.IntN(5)] + m.Float64()
	q := query.Query{
		Type:    m.kind(),
		Near:    &query.Near{Latitude: m.near(c.Point.Lat), Longitude: c.Point.Lon, RadiusKM: &radius},
		Quality: query.Quality{Health: query.HealthAny},
		Limit:   []int{1, 5, 20, 100}[m.IntN(4)],
	}
	switch m.IntN(4) {
	case 0:
		q.Sort = query.SortPrice
	case 1:
		least := 90 + 10*m.Float64()
		q.MinUptime = &least
	}
	return q
}

// worldwide is a question without a place: its answer may be in any part of a full cell.
func (m *market) worldwide() query.Query {
	least := 90 + 10*m.Float64()
	q := query.Query{Type: kinds()[0], Limit: 10, Quality: query.Quality{Health: query.HealthAny}}
	switch m.IntN(6) {
	case 0:
		q.Sort = query.SortPrice
	case 1:
		q.Limit, q.Claims = 100, query.ClaimsTrust
	case 2:
		q.Sort, q.Seed = query.SortRandom, m.Uint64()
	case 3:
		q.Sort, q.Limit = query.SortStable, 100
	case 4:
		q.Countries = []string{m.city().Country}
	default:
		q.MinCPUCores, q.Sort = 64, query.SortPrice
	}
	q.MinUptime = &least // nearly no two are equal
	return q
}

// around is a question for everything of a kind near a point.
func around(kind string, p geo.Point, km float64) query.Query {
	return query.Query{
		Type: kind, Near: &query.Near{Latitude: p.Lat, Longitude: p.Lon, RadiusKM: &km},
		Quality: query.Quality{Health: query.HealthAny}, Limit: queries.MaxLimit,
	}
}
