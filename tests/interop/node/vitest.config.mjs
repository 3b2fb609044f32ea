// Only our files, every test once, and nothing written beside the packages.  Where a test has no
// limit of its own, it gets more than the usual 5 s: machines that run test suites are busy.

export default {
  cacheDir: "cache",
  test: { include: ["conformance.test.mjs"], retry: 0, testTimeout: 30_000, bail: 0, globals: false },
}
