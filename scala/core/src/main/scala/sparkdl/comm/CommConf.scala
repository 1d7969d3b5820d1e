// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import org.apache.spark.SparkConf

/**
 * Settings that the plugin reads from Spark's conf when an executor starts. Settings of one job,
 * such as its wire format and deadlines, come with the job over the bridge.
 * conf/sparkdl-defaults.conf lists and documents all keys.
 */
private[comm] final case class CommConf(firstPort: Int, portCount: Int)

private[comm] object CommConf {
  private val Ports = "spark.sparkdl.comm.ports"

  def apply(conf: SparkConf): CommConf = {
    val text = conf.get(Ports, "0").trim
    def refuse(): Nothing =
      throw new IllegalArgumentException(
        s"$Ports=$text: expected 0 (any port) or a range such as 40000-40100 in 1024-65535"
      )
    text.split("-").map(part => scala.util.Try(part.trim.toInt).getOrElse(refuse())) match {
      case Array(0) => CommConf(0, 1)
      case Array(port) if port >= 1024 && port <= 65535 => CommConf(port, 1)
      case Array(first, last) if first >= 1024 && first <= last && last <= 65535 =>
        CommConf(first, last - first + 1)
      case _ => refuse()
    }
  }
}
