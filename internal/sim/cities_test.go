package sim

import "github.com/blackhole/blackhole/pkg/geo"

// city is where services are. Offers are spread by population.
type city struct {
	name, country string
	point         geo.Point
	people        int
}

// cities are big ones, and small ones in awkward places: near the antimeridian and far from the equator.
func cities() []city {
	return []city{
		{"Shanghai", "CN", geo.Point{Lat: 31.2222, Lon: 121.4581}, 22315474},
		{"Istanbul", "TR", geo.Point{Lat: 41.0138, Lon: 28.9497}, 14804116},
		{"Buenos Aires", "AR", geo.Point{Lat: -34.6131, Lon: -58.3772}, 13076300},
		{"Mumbai", "IN", geo.Point{Lat: 19.0728, Lon: 72.8826}, 12691836},
		{"Mexico City", "MX", geo.Point{Lat: 19.4285, Lon: -99.1277}, 12294193},
		{"Beijing", "CN", geo.Point{Lat: 39.9075, Lon: 116.3972}, 11716620},
		{"Karachi", "PK", geo.Point{Lat: 24.8608, Lon: 67.0104}, 11624219},
		{"Tianjin", "CN", geo.Point{Lat: 39.1422, Lon: 117.1767}, 11090314},
		{"Guangzhou", "CN", geo.Point{Lat: 23.1167, Lon: 113.25}, 11071424},
		{"Delhi", "IN", geo.Point{Lat: 28.6519, Lon: 77.2315}, 10927986},
		{"Moscow", "RU", geo.Point{Lat: 55.7522, Lon: 37.6156}, 10381222},
		{"Shenzhen", "CN", geo.Point{Lat: 22.5455, Lon: 114.0683}, 10358381},
		{"Dhaka", "BD", geo.Point{Lat: 23.7104, Lon: 90.4074}, 10356500},
		{"Seoul", "KR", geo.Point{Lat: 37.566, Lon: 126.9784}, 10349312},
		{"São Paulo", "BR", geo.Point{Lat: -23.5475, Lon: -46.6361}, 10021295},
		{"Wuhan", "CN", geo.Point{Lat: 30.5833, Lon: 114.2667}, 9785388},
		{"Lagos", "NG", geo.Point{Lat: 6.4541, Lon: 3.3947}, 9000000},
		{"Jakarta", "ID", geo.Point{Lat: -6.2146, Lon: 106.8451}, 8540121},
		{"Tokyo", "JP", geo.Point{Lat: 35.6895, Lon: 139.6917}, 8336599},
		{"New York City", "US", geo.Point{Lat: 40.7143, Lon: -74.006}, 8175133},
		{"Dongguan", "CN", geo.Point{Lat: 23.018, Lon: 113.7487}, 8000000},
		{"Taipei", "TW", geo.Point{Lat: 25.0478, Lon: 121.5319}, 7871900},
		{"Kinshasa", "CD", geo.Point{Lat: -4.3276, Lon: 15.3136}, 7785965},
		{"Lima", "PE", geo.Point{Lat: -12.0432, Lon: -77.0282}, 7737002},
		{"Cairo", "EG", geo.Point{Lat: 30.0626, Lon: 31.2497}, 7734614},
		{"Bogotá", "CO", geo.Point{Lat: 4.6097, Lon: -74.0817}, 7674366},
		{"London", "GB", geo.Point{Lat: 51.5085, Lon: -0.1257}, 7556900},
		{"Chongqing", "CN", geo.Point{Lat: 29.5628, Lon: 106.5528}, 7457600},
		{"Chengdu", "CN", geo.Point{Lat: 30.6667, Lon: 104.0667}, 7415590},
		{"Baghdad", "IQ", geo.Point{Lat: 33.3406, Lon: 44.4009}, 7216000},
		{"Nanjing", "CN", geo.Point{Lat: 32.0617, Lon: 118.7778}, 7165292},
		{"Tehran", "IR", geo.Point{Lat: 35.6944, Lon: 51.4215}, 7153309},
		{"Nanchong", "CN", geo.Point{Lat: 30.7951, Lon: 106.0847}, 7150000},
		{"Hong Kong", "HK", geo.Point{Lat: 22.2783, Lon: 114.1747}, 7012738},
		{"Xi’an", "CN", geo.Point{Lat: 34.2583, Lon: 108.9286}, 6501190},
		{"Lahore", "PK", geo.Point{Lat: 31.558, Lon: 74.3507}, 6310888},
		{"Shenyang", "CN", geo.Point{Lat: 41.7922, Lon: 123.4328}, 6255921},
		{"Hangzhou", "CN", geo.Point{Lat: 30.2936, Lon: 120.1614}, 6241971},
		{"Rio de Janeiro", "BR", geo.Point{Lat: -22.9064, Lon: -43.1822}, 6023699},
		{"Harbin", "CN", geo.Point{Lat: 45.75, Lon: 126.65}, 5878939},
		{"Tai’an", "CN", geo.Point{Lat: 36.1853, Lon: 117.12}, 5499000},
		{"Suzhou", "CN", geo.Point{Lat: 31.3041, Lon: 120.5954}, 5345961},
		{"Shantou", "CN", geo.Point{Lat: 23.3681, Lon: 116.7148}, 5329024},
		{"Bangkok", "TH", geo.Point{Lat: 13.754, Lon: 100.5014}, 5104476},
		{"Bengaluru", "IN", geo.Point{Lat: 12.9719, Lon: 77.5937}, 5104047},
		{"Saint Petersburg", "RU", geo.Point{Lat: 59.9386, Lon: 30.3141}, 5028000},
		{"Suva", "FJ", geo.Point{Lat: -18.1416, Lon: 178.4415}, 77366},
		{"Apia", "WS", geo.Point{Lat: -13.8333, Lon: -171.7667}, 40407},
		{"Tromso", "NO", geo.Point{Lat: 69.6489, Lon: 18.9551}, 72066},
		{"Ushuaia", "AR", geo.Point{Lat: -54.8019, Lon: -68.303}, 82615},
	}
}
