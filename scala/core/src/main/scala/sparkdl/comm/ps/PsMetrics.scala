package sparkdl.comm.ps

import com.codahale.metrics.MetricRegistry

/** Entries of the plugin in Spark's metric registry, summed over the ranks of an executor. */
private[ps] final class PsMetrics(registry: MetricRegistry) {
  val pulledBytes = registry.counter("ps.pull.bytes")
  val pushedBytes = registry.counter("ps.push.bytes")
  val pullTime = registry.timer("ps.pull.time")
  val pushTime = registry.timer("ps.push.time")
  val aggregateTime = registry.timer("ps.aggregate.time")
}
