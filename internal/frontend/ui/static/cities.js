// Cities by name, for places without a network: name, latitude, longitude.
export const cities = [
  ['Amsterdam', 52.37, 4.9], ['Athens', 37.98, 23.73], ['Auckland', -36.85, 174.76], ['Bangkok', 13.76, 100.5], ['Barcelona', 41.39, 2.17],
  ['Beijing', 39.9, 116.41], ['Berlin', 52.52, 13.4], ['Bogota', 4.71, -74.07], ['Boston', 42.36, -71.06], ['Brussels', 50.85, 4.35],
  ['Bucharest', 44.43, 26.1], ['Budapest', 47.5, 19.04], ['Buenos Aires', -34.6, -58.38], ['Cairo', 30.04, 31.24], ['Cape Town', -33.92, 18.42],
  ['Chicago', 41.88, -87.63], ['Copenhagen', 55.68, 12.57], ['Dallas', 32.78, -96.8], ['Delhi', 28.61, 77.21], ['Denver', 39.74, -104.99],
  ['Dubai', 25.2, 55.27], ['Dublin', 53.35, -6.26], ['Frankfurt', 50.11, 8.68], ['Hamburg', 53.55, 9.99], ['Helsinki', 60.17, 24.94],
  ['Hong Kong', 22.32, 114.17], ['Istanbul', 41.01, 28.98], ['Jakarta', -6.21, 106.85], ['Johannesburg', -26.2, 28.05], ['Kyiv', 50.45, 30.52],
  ['Lagos', 6.52, 3.38], ['Lima', -12.05, -77.04], ['Lisbon', 38.72, -9.14], ['London', 51.51, -0.13], ['Los Angeles', 34.05, -118.24],
  ['Madrid', 40.42, -3.7], ['Manila', 14.6, 120.98], ['Melbourne', -37.81, 144.96], ['Mexico City', 19.43, -99.13], ['Miami', 25.76, -80.19],
  ['Milan', 45.46, 9.19], ['Montreal', 45.5, -73.57], ['Mumbai', 19.08, 72.88], ['Munich', 48.14, 11.58], ['Nairobi', -1.29, 36.82],
  ['New York', 40.71, -74.01], ['Osaka', 34.69, 135.5], ['Oslo', 59.91, 10.75], ['Paris', 48.86, 2.35], ['Prague', 50.08, 14.44],
  ['Reykjavik', 64.15, -21.94], ['Riyadh', 24.71, 46.68], ['Rome', 41.9, 12.5], ['San Francisco', 37.77, -122.42], ['Santiago', -33.45, -70.67],
  ['Sao Paulo', -23.55, -46.63], ['Seattle', 47.61, -122.33], ['Seoul', 37.57, 126.98], ['Shanghai', 31.23, 121.47], ['Singapore', 1.35, 103.82],
  ['Sofia', 42.7, 23.32], ['Stockholm', 59.33, 18.07], ['Sydney', -33.87, 151.21], ['Taipei', 25.03, 121.57], ['Tallinn', 59.44, 24.75],
  ['Tel Aviv', 32.08, 34.78], ['Tokyo', 35.68, 139.69], ['Toronto', 43.65, -79.38], ['Vancouver', 49.28, -123.12], ['Vienna', 48.21, 16.37],
  ['Vilnius', 54.69, 25.28], ['Warsaw', 52.23, 21.01], ['Washington', 38.91, -77.04], ['Zurich', 47.38, 8.54],
];
