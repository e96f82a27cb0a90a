# Energy-I-scores by the definition of Iscores 1.2.0 (functions energy_IScore and energy_Iscore_num), which was
# checked against seven published outputs of that package. Run in this folder: Rscript energy.R
#
# Tables: airquality (datasets of R); yacht hydrodynamics, auto-mpg, stock and concrete slump (UCI), standardised,
# with 20 or 25 % of the cells of some or all columns missing completely at random.
suppressMessages(library(mice))
N <- 20

crps <- function(y, draws) {
  draws <- sort(draws); n <- length(draws)
  mean(abs(draws - y)) - sum((2 * seq_len(n) - n - 1) * draws) / n^2
}

of_column <- function(X, completed, j, impute, N) {
  holes <- is.na(X)
  drawn <- !holes[, j]
  complete_there <- function(rows) setdiff(which(colSums(holes[rows, , drop = FALSE]) == 0), j)
  inputs <- complete_there(drawn)
  if (!length(inputs)) {
    others <- setdiff(seq_len(ncol(X)), j)
    k <- others[which.max(colSums(!holes[drawn, others, drop = FALSE]))]
    drawn <- drawn & !holes[, k]
    inputs <- complete_there(drawn)
  }
  table <- rbind(completed[drawn, c(j, inputs)], completed[!drawn, c(j, inputs)])
  table[seq_len(sum(drawn)), 1] <- NA
  draws <- sapply(seq_len(N), function(i) impute(table)[seq_len(sum(drawn)), 1])
  scores <- sapply(seq_len(sum(drawn)), function(i) crps(X[which(drawn)[i], j], draws[i, ]))
  list(rows = which(drawn), draws = draws, score = mean(scores), predictors = length(inputs))
}

column_mean <- function(X) { for (k in names(X)) X[[k]][is.na(X[[k]])] <- mean(X[[k]], na.rm = TRUE); X }
pmm <- function(X) complete(mice(X, m = 1, method = "pmm", printFlag = FALSE))

scores <- NULL
for (name in c("airquality", "yacht", "autompg", "stock", "concreteslump")) {
  X <- read.csv(paste0(name, ".csv"))
  imputers <- list(mean = column_mean)
  if (name == "airquality") imputers$pmm <- pmm
  for (imputer in names(imputers)) {
    set.seed(1)
    completed <- imputers[[imputer]](X)
    missing <- colSums(is.na(X))
    for (j in which(missing >= 10)) {
      own <- of_column(X, completed, j, imputers[[imputer]], if (imputer == "mean") 2 else N)
      share <- missing[j] / nrow(X)
      scores <- rbind(scores, data.frame(table = name, imputer = imputer, column = names(X)[j], score = own$score,
                                         weight = share * (1 - share), predictors = own$predictors, cells = length(own$rows)))
      if (imputer == "pmm") write.csv(data.frame(row = own$rows, own$draws), "pmm_draws.csv", row.names = FALSE)
    }
    if (imputer == "pmm") write.csv(completed, "pmm_completed.csv", row.names = FALSE)
  }
}
write.csv(format(scores, digits = 15), "scores.csv", row.names = FALSE)
