// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

/** Batch of the layers `first` to `last`, both included, counted from 1. */
private[comm] final case class Batch(first: Int, last: Int)

/**
 * Batches of consecutive layers that cover a network, in the order of the layers. Pulls go in this
 * order, pushes in the reverse.
 *
 * @param seconds predicted: for pulls from the begin of the first pull to the end of forward, for
 *    pushes from the begin of backward to the end of the last push
 */
private[comm] final case class Plan(batches: IndexedSeq[Batch], seconds: Double)

/** Times at which a batch is transferred and computed: begins and ends in seconds. */
private[comm] final case class BatchTimes(
    transferBegin: Double,
    transferEnd: Double,
    computeBegin: Double,
    computeEnd: Double
) {

  /** Return the same times on a clock that runs backwards from `end`. */
  def mirrored(end: Double): BatchTimes =
    BatchTimes(end - transferEnd, end - transferBegin, end - computeEnd, end - computeBegin)
}

/**
 * Times of batches, by the real pipeline: pulls go back to back, and a batch is computed when it
 * has arrived and the batch before it is computed.
 *
 *   S_k = k T_s + T_t[1..l_k]                     batch k has arrived
 *   F_k = max(F_{k-1}, S_k) + C[l_{k-1}+1..l_k]   batch k is computed; F_0 = 0
 *
 * F_N is the plan's time. Written out, it is the largest S_k + C[l_{k-1}+1..L] over all k. It is
 * computed by this formula everywhere, so that plans with equal times compare as equal.
 */
private[comm] final class Pipeline(val profile: Profile) {
  val layers: Int = profile.layers
  private val transferred: Array[Double] = profile.transfer.scanLeft(0.0)(_ + _).toArray
  private val computed: Array[Double] = profile.compute.scanLeft(0.0)(_ + _).toArray
  private val left: Array[Double] = profile.compute.scanRight(0.0)(_ + _).toArray

  /** Return the seconds to pull layers `after` + 1 to `last` in one communication. */
  def pull(after: Int, last: Int): Double =
    profile.startup + (transferred(last) - transferred(after))

  /** Return the seconds to compute layers `after` + 1 to `last`. */
  def compute(after: Int, last: Int): Double = computed(last) - computed(after)

  /**
   * Return when all layers would be computed if only batch number `k`, layers `after` + 1 to
   * `last`, caused a wait.
   */
  def finish(k: Int, after: Int, last: Int): Double =
    k * profile.startup + transferred(last) + left(after)

  /** Return the plan whose batches end with the layers `ends`; the last of these is L. */
  def plan(ends: IndexedSeq[Int]): Plan = {
    val after = 0 +: ends.init
    val seconds = ends.indices.map(k => finish(k + 1, after(k), ends(k))).max
    Plan(ends.indices.map(k => Batch(after(k) + 1, ends(k))), seconds)
  }

  /**
   * Return the predicted times of each batch of pulls. For pushes, mirror them at `plan.seconds`.
   */
  def schedule(plan: Plan): IndexedSeq[BatchTimes] = plan.batches
    .scanLeft(BatchTimes(0, 0, 0, 0)) { (before, batch) =>
      val arrived = before.transferEnd + pull(batch.first - 1, batch.last)
      val begin = math.max(before.computeEnd, arrived)
      BatchTimes(before.transferEnd, arrived, begin, begin + compute(batch.first - 1, batch.last))
    }
    .tail
}

/** Direction in which layers travel. */
private[ibatch] sealed abstract class Direction(val name: String, plural: String) {

  /** Return a count of batches as text, for example "7 pulls". */
  def count(batches: Int): String = s"$batches ${if (batches == 1) name else plural}"

  /** Put values in the order of the layers into the order of transfer. */
  def inTransferOrder[T](layers: IndexedSeq[T]): IndexedSeq[T]
}

private[ibatch] object Direction {
  case object Pull extends Direction("pull", "pulls") {
    override def inTransferOrder[T](layers: IndexedSeq[T]): IndexedSeq[T] = layers
  }

  /** Gradients, which backward makes for the last layer first. */
  case object Push extends Direction("push", "pushes") {
    override def inTransferOrder[T](layers: IndexedSeq[T]): IndexedSeq[T] = layers.reverse
  }

  /**
   * Return the direction of this name.
   *
   * @throws IllegalArgumentException if there is none
   */
  def apply(name: String): Direction = Seq(Pull, Push)
    .find(_.name == name)
    .getOrElse(throw new IllegalArgumentException(
      s"direction=$name does not exist: set pull or push"
    ))
}
