// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import sparkdl.comm.Clock
import sparkdl.comm.ibatch.{ComputingTimes, RecentSteps}

/** Measurements of one rank's computing. Medians are over the last `steps` steps. */
private[bigdl] final class Profiler(layers: Int, steps: Int, clock: Clock) {
  import Profiler._

  val forward, backward = new LayerTimes(layers, steps, clock)
  private val updates = new RecentSteps[Double](steps)
  private val iterations = new RecentSteps[Double](math.max(0, steps - SettlingIterations))
  private var begun = Option.empty[(Long, Double)]
  private var settling = SettlingIterations

  /**
   * Begin an iteration, which ends the one before.
   *
   * @param updating seconds that the optimizer has taken in all iterations so far
   */
  def beginIteration(updating: Double): Unit = {
    val now = clock.nanoTime
    begun.foreach { case (before, earlier) =>
      if (settling > 0) settling -= 1 else iterations.add((now - before) / 1e9)
      updates.add(updating - earlier)
    }
    begun = Some((now, updating))
  }

  /** Forget the iterations that were timed, and time none until new buckets take effect. */
  def restart(): Unit = {
    iterations.clear()
    settling = SettlingIterations
  }

  def times: ComputingTimes = {
    val update = RecentSteps.median(updates.values).getOrElse(0.0)
    ComputingTimes(forward.medians, backward.medians, update, RecentSteps.median(iterations.values))
  }
}

private object Profiler {

  /**
   * Iterations until new buckets take effect: one for pulls, two for pushes. A measurement of so
   * few steps cannot time them.
   */
  private val SettlingIterations = 2
}

/**
 * Stopwatch that times one layer at a time, or none. It keeps the rounds of the last `steps` steps.
 * Times are in seconds. The mark is the time at which the current interval began.
 */
private[bigdl] final class LayerTimes(layers: Int, steps: Int, clock: Clock) {
  private val rounds = new RecentSteps[Array[Double]](steps)
  private var round = new Array[Double](layers)
  private var since = 0L
  private var current = Option.empty[Int]

  /** Begin a round, and set the mark. No layer runs yet. */
  def begin(): Unit = {
    round = new Array[Double](layers)
    current = None
    since = clock.nanoTime
  }

  /** Add the time since the mark to the running layer, if any. Then no layer runs. */
  def stop(): Unit = {
    current.foreach(layer => round(layer) += (clock.nanoTime - since) / 1e9)
    current = None
  }

  /** Stop the running layer. Let `layer` run from now on, and set the mark. */
  def start(layer: Int): Unit = {
    stop()
    current = Some(layer)
    since = clock.nanoTime
  }

  /** Add the time since the mark to `layer`, and set the mark. */
  def record(layer: Int): Unit = {
    val now = clock.nanoTime
    round(layer) += (now - since) / 1e9
    since = now
  }

  /** Set the mark, so that the time since the last mark counts for no layer. */
  def skip(): Unit = since = clock.nanoTime

  def end(): Unit = {
    stop()
    rounds.add(round)
  }

  /** Median of each layer; None if there was no round. */
  def medians: Option[IndexedSeq[Double]] =
    if (rounds.values.isEmpty) None
    else Some((0 until layers).flatMap(layer => RecentSteps.median(rounds.values.map(_(layer)))))
}
