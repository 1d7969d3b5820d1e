// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.apache.spark.ml.linalg.{SQLDataTypes, Vector}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.{DataFrame, Row}
import org.apache.spark.sql.types.{ArrayType, DataType, NumericType}

import com.intel.analytics.bigdl.dllib.feature.dataset.Sample
import com.intel.analytics.bigdl.dllib.tensor.{Storage, Tensor}
import com.intel.analytics.bigdl.numeric.NumericFloat

/** Rows of a DataFrame as samples of BigDL. */
private[bigdl] object FrameRows {

  /**
   * Convert the rows of a DataFrame.
   *
   * @param features column of features: a vector, or an array of numbers
   * @param label column of labels: a vector, an array of numbers, or a number
   * @param size of the tensor of features
   * @throws UnsupportedTrainingException if a column is missing or has another type
   */
  def apply(
      frame: DataFrame,
      features: String,
      label: String,
      size: Array[Int]
  ): RDD[Sample[Float]] = {
    val read = Seq(features, label).map(name => numbers(name, typeOf(frame, name)))
    val count = size.product
    frame.select(features, label).rdd.map { row =>
      val Seq(values, target) = read.zipWithIndex.map { case (from, column) =>
        if (row.isNullAt(column))
          throw new UnsupportedTrainingException(
            s"column ${Seq(features, label)(column)} has a row without a value"
          )
        from(row, column)
      }
      if (values.length != count)
        throw new UnsupportedTrainingException(
          s"column $features has a row of ${values.length} numbers, but the model takes" +
            s" ${size.mkString(" x ")}"
        )
      Sample(Tensor(Storage(values), 1, size), Tensor(Storage(target), 1, Array(target.length)))
    }
  }

  private def typeOf(frame: DataFrame, name: String): DataType = frame.schema.fields
    .find(_.name == name)
    .getOrElse(throw new UnsupportedTrainingException(
      s"there is no column $name: there are ${frame.columns.mkString(", ")}"
    ))
    .dataType

  private def numbers(name: String, as: DataType): (Row, Int) => Array[Float] = as match {
    case ArrayType(_: NumericType, _) =>
      (row, column) => row.getSeq[Number](column).map(_.floatValue).toArray
    case _: NumericType => (row, column) => Array(row.getAs[Number](column).floatValue)
    case SQLDataTypes.VectorType =>
      (row, column) => row.getAs[Vector](column).toArray.map(_.toFloat)
    case other =>
      throw new UnsupportedTrainingException(
        s"column $name has type ${other.simpleString}: it needs a vector, an array of numbers, or" +
          " a number"
      )
  }
}
