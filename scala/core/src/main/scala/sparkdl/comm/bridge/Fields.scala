// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import sparkdl.comm.CommException

/**
 * Fields of a JSON object, each with its type and limits. Failures are of the kind Protocol and
 * name the field.
 */
private[bridge] final class Fields(val message: JsonNode) {
  def text(field: String): String = present(field, _.isTextual).asText

  def flag(field: String): Boolean = present(field, _.isBoolean).asBoolean

  def number(field: String): Long = wholeNumber(field, present(field, _.isIntegralNumber))

  /** Return the whole number in `field`. It must be from `least` to `most`, both included. */
  def number(field: String, least: Long, most: Long): Long =
    inRange(field, number(field), least, most)

  def int(field: String, least: Int = 0, most: Int = Int.MaxValue): Int =
    number(field, least, most).toInt

  /** Return a number more than 0, up to `most`. */
  def seconds(field: String, most: Double): Double = {
    val value = present(field, _.isNumber).asDouble
    if (!(value > 0 && value <= most))
      refuse(s"field $field: $value s must be more than 0 and at most $most s")
    value
  }

  /** Return a finite number of at least 0. */
  def amount(field: String): Double = notNegative(field, present(field, _.isNumber))

  def amounts(field: String): IndexedSeq[Double] = elements(field).map(notNegative(field, _))

  /** Return None if the field is there and is null. */
  def nullable[T](field: String)(read: String => T): Option[T] =
    if (message.path(field).isNull) None else Some(read(field))

  def child(field: String): Fields = new Fields(present(field, _.isObject))

  def objects(field: String): IndexedSeq[Fields] = elements(field).map { element =>
    if (!element.isObject) refuse(s"field $field holds $element, expected objects")
    new Fields(element)
  }

  def numbers(field: String, least: Long, most: Long): IndexedSeq[Long] =
    elements(field).map(element => inRange(field, wholeNumber(field, element), least, most))

  /** Return pairs of whole numbers. */
  def pairs(field: String, least: Int, most: Int): IndexedSeq[(Int, Int)] =
    elements(field).map { pair =>
      if (!pair.isArray || pair.size != 2) refuse(s"field $field holds $pair, expected pairs")
      def part(index: Int): Int =
        inRange(field, wholeNumber(field, pair.get(index)), least, most).toInt
      (part(0), part(1))
    }

  private def elements(field: String): IndexedSeq[JsonNode] =
    present(field, _.isArray).elements.asScala.toIndexedSeq

  private def notNegative(field: String, value: JsonNode): Double = {
    if (!value.isNumber || !(value.asDouble >= 0 && value.asDouble < Double.PositiveInfinity))
      refuse(s"field $field holds $value, expected a number of at least 0")
    value.asDouble
  }

  private def wholeNumber(field: String, value: JsonNode): Long = {
    if (!value.isIntegralNumber || !value.canConvertToLong)
      refuse(s"field $field holds $value, expected a whole number of 64 bits")
    value.asLong
  }

  private def inRange(field: String, value: Long, least: Long, most: Long): Long = {
    if (value < least || value > most)
      refuse(s"field $field: $value is not between $least and $most")
    value
  }

  private def present(field: String, hasType: JsonNode => Boolean): JsonNode = {
    val value = message.path(field)
    if (!hasType(value)) refuse(s"field $field is missing or has the wrong type: $value")
    value
  }

  private def refuse(why: String): Nothing = throw new CommException(CommException.Protocol, why)
}
