// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import scala.util.Try

/** Policy that cuts a network into batches. */
private[comm] sealed abstract class Policy(val name: String) {

  /** True if the cut depends on measured times. */
  def needsProfile: Boolean = this match {
    case Policy.Whole | Policy.Layerwise | Policy.PaperLayerwise | Policy.Fixed(_) => false
    case _ => true
  }

  /** True if the planner cuts the batches, by the computing times of layers. */
  def isPlanned: Boolean = this match {
    case Policy.Parts(_) => false
    case _ => needsProfile
  }

  /**
   * True if a batch of parameters is requested only after the one before has arrived, as the
   * paper's one thread does.
   */
  def isSequential: Boolean = this == Policy.Paper || this == Policy.PaperLayerwise
}

private[comm] object Policy {

  /** Policy of one batch for all layers. */
  case object Whole extends Policy("whole")

  /** Policy of one batch for each layer. */
  case object Layerwise extends Policy("layerwise")

  /** The paper's Algorithm 1. */
  case object Greedy1 extends Policy("greedy1")

  /** The paper's Algorithm 2. */
  case object Greedy2 extends Policy("greedy2")

  /**
   * The better plan of [[Greedy1]] and [[Greedy2]], as in the paper. [[Planner.planBoth]] plans
   * pulls and pushes at once.
   */
  case object IBatch extends Policy("ibatch")

  /**
   * Plan of [[IBatch]], with each batch requested after the one before has arrived: see
   * [[Profile.isSequential]].
   */
  case object Paper extends Policy("paper")

  /**
   * Policy of one batch for each layer, requested after the one before has arrived: what the paper
   * compares with.
   */
  case object PaperLayerwise extends Policy("paper-layerwise")

  /** The fastest plan of one direction. */
  case object Optimal extends Policy("optimal")

  /** At most `count` parts with about equal transfer times; the first is cut again. */
  final case class Parts(count: Int) extends Policy(s"parts:$count")

  /** Batches of as many layers as fit into `bytes`, and at least one. */
  final case class Fixed(bytes: Long) extends Policy(s"fixed:$bytes")

  private val named: Seq[Policy] =
    Seq(Whole, Layerwise, Greedy1, Greedy2, IBatch, Paper, PaperLayerwise, Optimal)

  /** No network has so many layers. */
  private val MostParts = 1000000

  def apply(text: String): Policy = named
    .find(_.name == text)
    .orElse(number(text, "parts:").filter(_ <= MostParts).map(count => Parts(count.toInt)))
    .orElse(number(text, "fixed:").map(Fixed(_)))
    .getOrElse(throw new IllegalArgumentException(
      s"policy $text does not exist: set one of ${named.map(_.name).mkString(", ")}, parts:COUNT" +
        s" with COUNT of 1 to $MostParts, or fixed:BYTES with BYTES of at least 1"
    ))

  private def number(text: String, prefix: String): Option[Long] =
    Some(text).filter(_.startsWith(prefix)).flatMap(rest =>
      Try(rest.drop(prefix.length).toLong).toOption
    ).filter(_ > 0)
}
