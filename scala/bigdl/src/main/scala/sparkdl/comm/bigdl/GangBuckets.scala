// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.io.{ByteArrayInputStream, ByteArrayOutputStream, DataInputStream, DataOutputStream}

import com.fasterxml.jackson.databind.ObjectMapper

import sparkdl.comm.gang.JvmRank
import sparkdl.comm.ibatch.{
  AdaptiveBuckets,
  Batch,
  BatchingSettings,
  DirectionProfile,
  RankReport,
  Traffic
}

/**
 * Buckets of a gang. Rank 0 decides from the measurements of all ranks and tells the others, so all
 * ranks have the same.
 */
private[bigdl] final class GangBuckets(
    rank: JvmRank,
    settings: BatchingSettings,
    traffic: Traffic
) {
  import GangBuckets._

  private val adaptive = new AdaptiveBuckets(settings, traffic, rank.clock)
  private var inUse = Decision(adaptive.nextReportStep, adaptive.pulls, adaptive.pushes)

  /** True if ranks must measure. */
  val needsProfiles: Boolean = adaptive.needsProfiles

  def pulls: LayerBuckets = new LayerBuckets(inUse.pulls)
  def pushes: LayerBuckets = new LayerBuckets(inUse.pushes)

  /** Return true if all ranks report their measurements after this step, counted from 1. */
  def isReportStep(step: Int): Boolean = inUse.nextReportStep.contains(step)

  /** Plan again. All ranks call it after the same step. Return true if the buckets have changed. */
  def replan(measured: RankReport): Boolean = {
    val before = inUse
    val reports = rank.session.gathering.begin(encode(measured)).parts()
    val own =
      if (rank.number != 0) Array.emptyByteArray
      else {
        adaptive.replan(reports.map(report(_, traffic.layers)))
        encode(Decision(adaptive.nextReportStep, adaptive.pulls, adaptive.pushes))
      }
    inUse = decision(rank.session.gathering.begin(own).parts().head)
    (inUse.pulls, inUse.pushes) != (before.pulls, before.pushes)
  }

  /** Plans of rank 0, as JSON. */
  def summary: String = {
    val reply = new ObjectMapper().createObjectNode()
    adaptive.report(reply)
    reply.toString
  }
}

private object GangBuckets {
  private final case class Decision(
      nextReportStep: Option[Int],
      pulls: IndexedSeq[Batch],
      pushes: IndexedSeq[Batch]
  )

  private def encode(report: RankReport): Array[Byte] = written { out =>
    def optional(value: Option[Double]): Unit = out.writeDouble(value.getOrElse(Double.NaN))
    Seq(report.pull, report.push).foreach { profile =>
      out.writeBoolean(profile.isDefined)
      profile.foreach { known =>
        known.compute.foreach(out.writeDouble)
        Seq(known.startup, known.perByte, known.sum, known.update).foreach(out.writeDouble)
        optional(known.gap)
      }
    }
    optional(report.seconds)
  }

  private def report(bytes: Array[Byte], layers: Int): RankReport = {
    val in = new DataInputStream(new ByteArrayInputStream(bytes))
    def optional(): Option[Double] = Some(in.readDouble()).filterNot(_.isNaN)
    def profile(): Option[DirectionProfile] =
      if (!in.readBoolean()) None
      else {
        val compute = IndexedSeq.fill(layers)(in.readDouble())
        val IndexedSeq(startup, perByte, sum, update) = IndexedSeq.fill(4)(in.readDouble())
        Some(DirectionProfile(compute, startup, perByte, optional(), sum, update))
      }
    RankReport(profile(), profile(), optional())
  }

  private def encode(decision: Decision): Array[Byte] = written { out =>
    out.writeInt(decision.nextReportStep.getOrElse(0)) // steps are counted from 1
    Seq(decision.pulls, decision.pushes).foreach { batches =>
      out.writeInt(batches.size)
      batches.foreach { batch =>
        out.writeInt(batch.first)
        out.writeInt(batch.last)
      }
    }
  }

  private def decision(bytes: Array[Byte]): Decision = {
    val in = new DataInputStream(new ByteArrayInputStream(bytes))
    def batches(): IndexedSeq[Batch] =
      IndexedSeq.fill(in.readInt())(Batch(in.readInt(), in.readInt()))
    Decision(Some(in.readInt()).filter(_ > 0), batches(), batches())
  }

  private def written(write: DataOutputStream => Unit): Array[Byte] = {
    val bytes = new ByteArrayOutputStream
    write(new DataOutputStream(bytes))
    bytes.toByteArray
  }
}

/**
 * Buckets of consecutive layers, numbered from 0 in the order of their transfer.
 *
 * @param batches their layers, counted from 1
 */
private[bigdl] final class LayerBuckets(val batches: IndexedSeq[Batch]) {

  /** Layers of each bucket, counted from 0. */
  val layers: IndexedSeq[Range] = batches.map(batch => batch.first - 1 until batch.last)

  /** Number of each layer's bucket. */
  val bucketOf: IndexedSeq[Int] = {
    val numbers = for ((range, bucket) <- layers.zipWithIndex; layer <- range) yield layer -> bucket
    numbers.sorted.map(_._2)
  }

  def size: Int = batches.size
}

/** Countdown of the layers that each bucket still waits for. */
private[bigdl] final class Countdown(buckets: LayerBuckets) {
  private val left = buckets.layers.map(_.size).toArray

  /** Count a layer. Return its bucket if the bucket is complete now. */
  def countDown(layer: Int): Option[Int] = {
    val bucket = buckets.bucketOf(layer)
    left(bucket) -= 1
    if (left(bucket) == 0) Some(bucket) else None
  }
}
