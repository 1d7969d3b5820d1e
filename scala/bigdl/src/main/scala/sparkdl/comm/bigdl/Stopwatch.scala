// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import sparkdl.comm.Clock
import sparkdl.comm.ps.Span

/** Phases of the thread that computes a replica, with their names in the summary of a fit. */
private[bigdl] object Phase extends Enumeration {
  val Pull: Value = Value("pull")
  val Forward: Value = Value("forward")
  val Backward: Value = Value("backward")
  val Push: Value = Value("push")
  val Aggregate: Value = Value("aggregate")
  val Update: Value = Value("update")

  /** Phases that compute. */
  val ComputingPhases: Set[Value] = Set(Forward, Backward, Update)
}

/** Seconds that one thread spent in each phase. */
private[bigdl] final class Stopwatch(clock: Clock) {
  private val spent = new Array[Double](Phase.maxId)
  private var current = Option.empty[Phase.Value]
  private var since = 0L
  private var computed = Vector.empty[Span]

  /** Run `body` as a phase. A phase inside of another one does not count for the outer one. */
  def time[T](phase: Phase.Value)(body: => T): T = {
    val outside = current
    switch(Some(phase))
    try body
    finally switch(outside)
  }

  /** Move seconds that were counted for `from` to `to`. */
  def move(from: Phase.Value, to: Phase.Value, seconds: Double): Unit = {
    spent(from.id) -= seconds
    spent(to.id) += seconds
  }

  def seconds(phase: Phase.Value): Double = spent(phase.id)

  /** Return the spans of computing since the last call of this method. */
  def takeComputed(): IndexedSeq[Span] = {
    val taken = computed
    computed = Vector.empty
    taken
  }

  private def switch(to: Option[Phase.Value]): Unit = {
    val now = clock.nanoTime
    current.foreach { phase =>
      spent(phase.id) += (now - since) / 1e9
      if (Phase.ComputingPhases(phase)) computed :+= Span(since, now)
    }
    current = to
    since = now
  }
}
