// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.apache.spark.SparkConf

import sparkdl.comm.ibatch.BatchingSettings
import sparkdl.comm.ps.{BlockEncoding, Encodings, SessionSettings}

/**
 * Settings of a training, with the same keys as for PyTorch. conf/sparkdl-defaults.conf documents
 * them.
 *
 * @param session settings of the parameter server
 * @param maxRestarts how many times the gang starts again after a rank was lost
 */
private[bigdl] final case class IBatchSettings(
    batching: BatchingSettings,
    session: SessionSettings,
    maxRestarts: Int
)

private[bigdl] object IBatchSettings {
  private val Prefix = "spark.sparkdl.comm."

  /**
   * Parse the settings.
   *
   * @throws UnsupportedTrainingException if a value is not valid, or not supported for BigDL
   */
  def apply(conf: SparkConf): IBatchSettings = {
    def text(key: String, default: String): String = conf.get(Prefix + key, default).trim
    def refuse(key: String, why: String): Nothing =
      throw new UnsupportedTrainingException(s"$Prefix$key=${text(key, "")}: $why")
    def parse[T](key: String, expected: String)(parsed: => T)(isGood: T => Boolean): T = {
      val value =
        try parsed
        catch { case _: IllegalArgumentException => refuse(key, expected) }
      if (isGood(value)) value else refuse(key, expected)
    }
    if (text("compression", "none") != "none")
      refuse("compression", "for BigDL gradients are not compressed; use none")

    val iterations =
      parse("ps.profileIterations", s"a number of at least 1 and at most ${Int.MaxValue}")(
        text("ps.profileIterations", "10").toInt
      )(_ > 0)
    val drift =
      parse("ps.replanDrift", "a positive number")(text("ps.replanDrift", "0.25").toDouble)(_ > 0)
    val batching =
      try BatchingSettings(
          text("ps.batching", "ibatch"),
          text("ps.pushBatching", ""),
          iterations,
          drift
        )
      catch { case e: IllegalArgumentException => refuse("ps.batching", e.getMessage) }
    val wire =
      try BlockEncoding(text("ps.wire", "fp32"))
      catch {
        case e: IllegalArgumentException => throw new UnsupportedTrainingException(e.getMessage)
      }
    val timeout = parse(
      "timeout",
      s"a time such as 5min, more than 0 and at most ${SessionSettings.MostSeconds}s"
    )(
      conf.getTimeAsMs(Prefix + "timeout", "5min") / 1e3
    )(seconds => seconds > 0 && seconds <= SessionSettings.MostSeconds)
    val restarts =
      parse("maxRestarts", "a number, 0 or more")(text("maxRestarts", "2").toInt)(_ >= 0)
    val session = SessionSettings(
      Encodings(wire),
      batching.canOverlap,
      false,
      batching.isSequential,
      batching.measuredSteps,
      timeout
    )
    IBatchSettings(batching, session, restarts)
  }
}
