// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import org.apache.spark.SparkConf

/**
 * Settings that the plugin reads from Spark's conf when an executor starts. Settings of one job,
 * such as its wire format and deadlines, come with the job over the bridge.
 * conf/sparkdl-defaults.conf lists and documents all keys.
 *
 * @param containerBytes limit of the executor's container on YARN, which ends an executor whose
 *    processes take more; None elsewhere
 */
private[comm] final case class CommConf(
    firstPort: Int,
    portCount: Int,
    containerBytes: Option[Long] = None
)

private[comm] object CommConf {
  private val Ports = "spark.sparkdl.comm.ports"

  /**
   * Parse the settings.
   *
   * @throws IllegalArgumentException if the ports are not a range of ports
   */
  def apply(conf: SparkConf): CommConf = {
    val (first, count) = ports(conf)
    CommConf(first, count, containerBytes(conf))
  }

  private def ports(conf: SparkConf): (Int, Int) = {
    val text = conf.get(Ports, "0").trim
    def refuse(): Nothing =
      throw new IllegalArgumentException(
        s"$Ports=$text: expected 0 (any port) or a range such as 40000-40100 in 1024-65535"
      )
    text.split("-").map(part => scala.util.Try(part.trim.toInt).getOrElse(refuse())) match {
      case Array(0) => (0, 1)
      case Array(port) if port >= 1024 && port <= 65535 => (port, 1)
      case Array(first, last) if first >= 1024 && first <= last && last <= 65535 =>
        (first, last - first + 1)
      case _ => refuse()
    }
  }

  /** Sum of what Spark asks YARN for an executor: see Spark's spark.executor.memoryOverhead. */
  private def containerBytes(conf: SparkConf): Option[Long] =
    if (!conf.get("spark.master", "").startsWith("yarn")) None
    else {
      val heap = conf.getSizeAsMb("spark.executor.memory", "1g")
      val usual =
        math.max(384, (heap * conf.getDouble("spark.executor.memoryOverheadFactor", 0.1)).toLong)
      val overhead = conf.getSizeAsMb("spark.executor.memoryOverhead", s"${usual}m")
      val more = Seq("spark.memory.offHeap.size", "spark.executor.pyspark.memory")
      Some((heap + overhead + more.map(conf.getSizeAsMb(_, "0")).sum) << 20)
    }
}
